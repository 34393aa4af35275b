"""Fit a profile to rows: a curve or a surface for each kernel, in a checked document of plain JSON."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from calibration.rows import STEP_OPS, KernelRows, Table, select
from calibration.surface_fit import (
    DECODE,
    EXPERTS,
    JOINT_AXES,
    PREFILL,
    KernelLaunch,
    find_knee,
    find_launch,
    fit_surface,
    gemm_surface,
    is_dense,
    joint,
    nnls,
    scheduled_surface,
)
from simulator.errors import InputError
from simulator.hardware.gpus import Gpu, find_gpu
from simulator.hardware.models import Model
from simulator.timing.cost import COUNTS, StepShape
from simulator.timing.formula_cost import ACTIVATION_BYTES
from simulator.timing.profile import Profile, read_profile
from simulator.timing.profile.kernels import Experts, Skew
from simulator.timing.profile.profile_cost import Options, ProfileCost
from simulator.timing.profile.profile_schema import (
    SCALE,
    SCHEMA,
    VERSION,
    described,
    kv_precision,
    load_profile,
    precision,
    shapes,
)
from simulator.timing.profile.surface import Array, Curve, Physics, Surface, SurfaceAxis, make_curve
from simulator.timing.tables import compose, parts_of, read_tables
from simulator.timing.tables.assumed import (
    LINKS,
    MOST_ROWS,
    NVLINK_US,
    PCIE_US,
    elementwise,
    nominal_all_reduce,
    sampler,
)
from simulator.timing.tables.attention import beside_factor, estimated_skew
from simulator.timing.tables.experts import beside
from simulator.timing.tables.latent import find_latent
from simulator.timing.tables.products import layer_products, product_curve
from simulator.timing.tables.table_schema import UNEQUAL, fill

# The document of a profile: its parts as plain JSON, and the check that its times are possible.

# Write the parts of a profile as plain JSON, which `simulator.timing.profile.profile_schema` reads.


def of_curve(curve: Curve) -> dict[str, Any]:
    """A curve as JSON."""
    return {
        "counts": [_number(count) for count in curve.counts],
        "us": list(curve.us),
        "us_beyond": curve.us_beyond,
        **({"tile": _number(curve.tile)} if curve.tile else {}),
    }


def of_surface(surface: Surface) -> dict[str, Any]:
    """A surface as JSON; corrections become integers."""
    return {
        "axes": [of_axis(axis) for axis in surface.axes],
        "physics": of_physics(surface.physics),
        "correction": [round(value / SCALE) for value in surface.correction],
    }


def of_axis(axis: SurfaceAxis) -> dict[str, Any]:
    """An axis as JSON."""
    return {"name": axis.name, "values": [_number(value) for value in axis.values]}


def of_physics(physics: Physics) -> dict[str, Any]:
    """Coefficients by feature, as JSON."""
    return {
        "constant_us": physics.constant_us,
        "terms": dict(physics.terms),
        "roofs": [dict(roof) for roof in physics.roofs],
        "p": physics.p,
    }


def of_skew(skew: Skew) -> dict[str, Any]:
    """A skew as JSON: microseconds per key to four digits."""
    return {
        "axes": [of_axis(axis) for axis in (skew.seqs, skew.share, skew.context)],
        "decode": [float(f"{value:.4g}") for value in skew.decode],
        "mixed": [float(f"{value:.4g}") for value in skew.mixed],
    }


def of_experts(experts: Experts) -> dict[str, Any]:
    """Experts as JSON."""
    return {"experts": experts.experts, "top_k": experts.top_k, "surface": of_surface(experts.surface)}


def write_document(document: dict[str, Any], path: Path) -> None:
    """Write a profile: one line a key of the top two levels, so that diffs can be read and files stay small."""
    lines = []
    for key, value in document.items():
        if isinstance(value, dict) and value:
            inner = [f"  {json.dumps(name)}: {_compact(part)}" for name, part in value.items()]
            lines.append(f"{json.dumps(key)}: {{\n" + ",\n".join(inner) + "\n}")
        else:
            lines.append(f"{json.dumps(key)}: {_compact(value)}")
    path.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


def _compact(value: object) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def _number(value: float) -> float | int:
    return int(value) if float(value).is_integer() else value


# Describe a profile, and check that its times are possible: for `batchlab calibrate check`.

TARGETS = {"decode_attention": 5.0, "prefill_attention": 6.0, "gemm": 5.0, "joint_attention": 5.0, "few": 7.0}
"""Held-out MAPE in percent up to which a kernel of a shipped profile counts as well predicted."""

COUNTED = {
    "rejected": "rejected as impossible", "disturbed": "left out as disturbed", "cold": "brought to a cold cache",
}  # fmt: skip
"""Counts of rows in tables, and their words."""


@dataclass(frozen=True, slots=True)
class ProfileReport:
    """Lines for the user; with `complaints` the profile is unfit."""

    lines: tuple[str, ...]
    complaints: tuple[str, ...]


def check_profile(path: Path) -> ProfileReport:
    """Read a profile (InputError where that fails), describe it, and try it on steps of growing size."""
    profile = read_profile(path)
    document = profile.document
    covered = profile.covered()
    lines = [
        f"{profile.name}: {profile.model or 'no model named'} on {profile.gpu or 'no GPU named'}, "
        f"tensor_parallel {profile.tensor_parallel}, {document.get('software') or 'software not stated'}",
        f"measured: steps of up to {covered['tokens']:,} tokens, {covered['seqs']:,} decodes, "
        f"{covered['context']:,} tokens of mean context",
        f"host: {profile.host_s * 1e3:.2f} ms a step ({document['host'].get('from', 'not said')})",
    ]
    lines += _sources(document)
    if document.get("assumed"):
        lines.append(f"assumed, not measured: {', '.join(document['assumed'])}")
    for part in document.get("rejected", ()):
        lines.append(f"rejected as impossible: {part['count']:,} of {part['of']:,} rows of {part['kind']}")
    lines += _errors(document.get("errors", {}))
    return ProfileReport(tuple(lines), tuple(_complaints(profile)))


def check_tables(path: Path, model: Model | None = None, tensor_parallel: int = 1) -> ProfileReport:
    """Read tables (InputError where that fails), and say what can be composed from them, and how well.

    With a model, say where the times of each of its parts come from on so many GPUs. InputError names what is missing.
    """
    tables = read_tables(path)
    experts = beside(path.parent, tables.gpu, tables.software)
    lines = [f"{tables.name}: any {'' if experts else 'dense '}model on {tables.gpu}, {tables.software}"]
    lines += _sources(tables.document)
    for name, surface in tables.products.items():
        m, n, k = surface.axes
        sizes = f"{n.values[0]:,.0f} to {n.values[-1]:,.0f} by {k.values[0]:,.0f} to {k.values[-1]:,.0f}"
        lines.append(f"products of {name}: {sizes}, up to {m.values[-1]:,.0f} rows")
    for kind, parts in (("decodes", tables.decode), ("prompts", tables.prompt)):
        for part in parts:
            window = f", window {part.window:,}" if part.window else ""
            lines.append(
                f"{kind}: heads of {part.head_dim}, {part.kv_dtype} KV{window}: {len(part.log_us)} pairs of heads"
            )
    lines.append(f"all-reduce among {', '.join(map(str, sorted(tables.all_reduce)))} GPUs")
    for each in experts:
        models = {
            name: {(cell.hidden, cell.experts, cell.top_k) for cell in of.cells} for name, of in each.precisions.items()
        }
        listed = ", ".join(f"{name} of {len(found)} models" for name, found in models.items())
        lines.append(f"experts ({each.software}): {listed}")
    latent = find_latent(tables)
    if latent is not None:
        for modules in latent.decode:
            kernels = f"{len(modules.by_heads)} numbers of heads, {' and '.join(modules.kernels)}"
            lines.append(f"latent attention ({latent.software}): {modules.dtype}, {modules.kv_dtype} KV: {kernels}")
    for name, why in tables.document.get("left_out", {}).items():
        lines.append(f"left out: {name}: {why}")
    for counts, what in COUNTED.items():
        for name, (count, of) in tables.document.get(counts, {}).items():
            if count:
                lines.append(f"{what}: {count:,} of {of:,} rows of {name}")
    documents = tables.document, *(each.document for each in (*experts[:1], latent) if each is not None)
    lines += _errors({kind: found for document in documents for kind, found in document.get("errors", {}).items()})
    if model is not None:
        profile = compose(tables, model, find_gpu(tables.gpu), tensor_parallel)
        lines.append(f"{described(model)}, tensor_parallel {tensor_parallel}:")
        lines += [f"  {part}" for part in parts_of(profile)]
    return ProfileReport(tuple(lines), ())


def _sources(document: Mapping[str, Any]) -> list[str]:
    return [
        "from: " + ", ".join(f"{key} {value}" for key, value in source.items() if not isinstance(value, dict))
        for source in document.get("sources", ())
    ]


def _errors(errors: Mapping[str, Any]) -> list[str]:
    if not errors:
        return ["held-out errors: none recorded"]
    lines = ["held-out errors (percent)           MAPE  median     P95    bias    rows"]
    for kind, regimes in errors.items():
        for regime, found in regimes.items():
            target = TARGETS.get(regime, TARGETS.get(kind, 5.0)) if regime in ("random", "off_grid", "few") else None
            mark = "" if target is None or found["mape"] <= target else f"  above {target:g}"
            lines.append(
                f"  {kind:18s} {regime:10s} {found['mape']:8.2f} {found['median']:7.2f} {found['p95']:7.2f} "
                f"{found['bias']:+7.2f} {found['rows']:7,}{mark}"
            )
    return lines


def _complaints(profile: Profile) -> list[str]:
    """Name the steps that take no time, or less than 90 % of a smaller one's."""
    cost = ProfileCost(profile)
    found = []
    steps = [StepShape(seqs, seqs * context) for seqs in (1, 8, 64) for context in (128, 1024, 8192)]
    steps += [StepShape(0, 0, 1, n, n, n * (n + 1) // 2, 0, 0, n) for n in (16, 256, 2048)]
    seconds = [cost.step_s(step) for step in steps]
    if min(seconds) <= 0:
        found.append("a step takes no time")
    for start in (0, 3, 6, 9):
        if seconds[start + 2] < 0.9 * seconds[start]:
            found.append(f"{steps[start + 2]} takes less than {steps[start]}")
    return found


# The cost of unequal contexts, from batches of two lengths: by batch size, share of long contexts, context.

SHARES = (0.0, 0.008, 0.016, 0.023, 0.031, 0.047, 0.0625, 0.09, 0.125, 0.1875, 0.25, 0.375, 0.5, 0.75, 0.9, 1.0)
"""Shares of long contexts at which the extra is kept."""


def fit_skew(table: Table) -> Skew | None:
    """Fit the skew to a table of `skew` rows; None where there are none.

    The extra is per key of (longest - mean), the median over whatever else the rows differ in, and at least 0: a batch
    that waits for its longest is not faster for it. With all of them long there is nothing to add.
    """
    if not len(table["us"]):
        return None
    seqs, share = table["seqs"], table["long_seqs"] / table["seqs"]
    mean = share * table["long"] + (1.0 - share) * table["short"]
    extra = (table["us"] - table["equal_us"]) / (table["long"] - mean)
    alone = table["chunk"] == 0
    sizes, contexts = np.unique(seqs), np.unique(table["short"])
    decode = np.full((len(sizes), len(SHARES)), np.nan)
    mixed = np.full((*decode.shape, len(contexts)), np.nan)
    for i, size in enumerate(sizes):
        here = seqs == size
        decode[i] = _along_shares(share[here & alone], extra[here & alone])
        for k, context in enumerate(contexts):
            there = here & ~alone & (table["short"] == context)
            mixed[i, :, k] = _along_shares(share[there], extra[there])
    decode, mixed = np.maximum(fill(decode), 0.0), np.maximum(fill(mixed), 0.0)
    return Skew(
        SurfaceAxis("seqs", tuple(sizes.tolist())),
        SurfaceAxis("share", SHARES),
        SurfaceAxis("context", tuple(contexts.tolist())),
        tuple(decode.ravel().tolist()),
        tuple(mixed.ravel().tolist()),
    )


def _along_shares(share: Array, extra: Array) -> Array:
    """Medians at the measured shares, straight lines between them, nothing at 1; unknown where nothing was measured."""
    known = np.unique(share)
    if not len(known):
        return np.full(len(SHARES), np.nan)
    medians = np.array([np.median(extra[share == value]) for value in known])
    return np.asarray(np.interp(SHARES, [*known, 1.0], [*medians, 0.0]))


# The fit of a profile.

GRID = (16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0, 2048.0, 4096.0, 8192.0, 16384.0)
"""Doublings: the cells of joint tables. Rows between them test the table."""

DEFAULT_HOST_S = 300e-6
"""Seconds for which a GPU waits between two steps of an engine that schedules asynchronously: input preparation and
launches that cannot be hidden. The same figure as the roofline's."""

ASSUMED_HOST = {"step_s": DEFAULT_HOST_S, "seq_s": 0.0, "from": "assumed"}
NO_HOST = {"step_s": 0.0, "seq_s": 0.0, "from": "left out"}
FEWEST_STEPS = 12  # whole steps from which the host's part is fitted


def fit_profile(
    rows: KernelRows, model: Model, gpu: Gpu, name: str, host: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Fit a profile: its JSON, without its errors (`calibration.heldout`).

    What the host adds to a step is `host`; else it is fitted where whole steps were measured, and assumed where not.
    InputError where rows that it needs are missing, or too many are flagged.
    """
    rows.refuse_flagged()
    check_scope(rows, model)
    tables, assumed = _tables(rows, model, gpu)
    document: dict[str, Any] = {
        "schema": SCHEMA,
        "version": VERSION,
        "name": name,
        "model": model.name,
        "gpu": rows.gpu,
        "tensor_parallel": rows.tensor_parallel,
        "dtype": rows.dtype,
        "dimensions": shapes(model),
        "software": rows.software,
        "layers": model.layers,
        "sources": [dict(source) for source in rows.sources],
        "host": dict(host) if host is not None else ASSUMED_HOST,
        "attention": fit_attention(rows.table("attention"), find_launch(model, gpu, rows.tensor_parallel)),
    }
    if rows.kv_dtype:
        document["kv_dtype"] = rows.kv_dtype
    if document["attention"]["prompts"] == "apart":
        heads = model.heads // rows.tensor_parallel, model.local_kv_heads(rows.tensor_parallel)
        if (beside := beside_factor(rows.gpu, *heads)) != 1.0:
            document["attention"]["beside"] = round(beside, 4)
    skew = fit_skew(rows.table("skew"))
    if skew is None:
        skew = _estimated_skew(document["attention"], rows, model)
        assumed = (*assumed, UNEQUAL) if skew is not None else assumed
    if skew is not None:
        document["skew"] = of_skew(skew)
    if len(rows.table("experts")["us"]):
        document["experts"] = of_experts(_experts(rows.table("experts"), model))
    if rows.tensor_parallel > 1:
        reduce, how = _all_reduce(rows, model, gpu)
        document["all_reduce"] = {"from": how, "curve": of_curve(reduce)}
        if "nominal" in how:
            assumed = (*assumed, "all_reduce")
    document["assumed"] = list(assumed)
    document["tables"] = {
        where: {op: of_curve(curve) for op, curve in curves.items()} for where, curves in tables.items()
    }
    if host is None and len(rows.table("step")["us"]) >= FEWEST_STEPS:
        document["host"] = fit_host(rows, document)
    return document


def check_scope(rows: KernelRows, model: Model) -> None:
    """Raise InputError where the rows are of another precision than the model, or lack a part of its layers."""
    needs = precision(model)
    if rows.dtype and rows.dtype != needs:
        hint = "rows of that precision, or the model as it was measured"
        raise InputError(f"the rows have {rows.dtype} weights, and {model.name} has {needs}", hint=hint)
    if rows.kv_dtype and rows.kv_dtype != kv_precision(model):
        what = f"the rows have a KV cache in {rows.kv_dtype}, and {model.name} has one in {kv_precision(model)}"
        raise InputError(what, hint="rows of that precision, or model.kv_dtype_bytes as it was measured")
    has_experts = bool(len(rows.table("experts")["us"]))
    if model.experts and not has_experts:
        layers = f"{model.moe_layers} of its {model.layers} layers"
        raise InputError(
            f"no rows of experts, and {model.name} has {model.experts} in each of {layers}: they would cost nothing",
            hint="rows of the kind experts beside these, or kind: roofline, which prices experts by their dimensions",
        )
    if has_experts and not model.experts:
        raise InputError(f"the rows hold experts, and {model.name} has none", hint="--model M, one with experts")
    if model.kv_lora_rank:
        raise InputError(
            f"{model.name} has multi-head latent attention, whose kernels cannot be fitted yet",
            hint="kind: roofline, which prices it by its dimensions",
        )
    if model.shared_experts or model.dense_layers:
        raise InputError(
            f"{model.name} has shared experts or layers without experts: rows cannot tell their matrices apart yet",
            hint="kind: roofline, which prices them by their dimensions",
        )


def _estimated_skew(attention: Mapping[str, Any], rows: KernelRows, model: Model) -> Skew | None:
    """Estimate the cost of unequal contexts in vLLM's attention, where no such batch was measured."""
    if attention["prompts"] == "joint" or rows.dtype != "bf16" or not rows.software.startswith("vLLM"):
        return None
    heads, kv_heads = model.heads // rows.tensor_parallel, model.local_kv_heads(rows.tensor_parallel)
    key_us = attention["decode"]["physics"]["roofs"][0]["keys"]
    return estimated_skew(rows.gpu, heads, kv_heads, key_us, attention.get("beside", 1.0))


def fit_host(rows: KernelRows, document: Mapping[str, Any]) -> dict[str, Any]:
    """Fit the time of whole steps beyond their kernels: a constant, and a time for each sampled row.

    A device's own times do not include the wait between two steps of a server, so the assumed figure must not be added
    to what is compared with them. Relative errors count, large ones less and less (`calibration.surface_fit`).
    """
    steps = rows.table("step")
    kernels = ProfileCost(load_profile({**document, "host": NO_HOST}), Options(cuda_graphs=rows.is_padded))
    shapes = [StepShape(*map(int, row)) for row in zip(*(steps[name] for name in COUNTS), strict=True)]
    features = {
        "rows": steps["decode_seqs"] + steps["prefill_seqs"],
        "kernels": np.array([kernels.step_s(shape) for shape in shapes]) * 1e6,
    }
    left = steps["us"] - features["kernels"]
    columns = np.column_stack([np.ones(len(left)), features["rows"]]) / steps["us"][:, None]
    (constant_us, row_us), keep = np.zeros(2), np.ones(len(left), dtype=bool)
    for _ in range(3):  # again without the steps that are far off
        (constant_us, row_us), _ = nnls(columns[keep], (left / steps["us"])[keep])
        off = np.abs(left - constant_us - row_us * features["rows"]) / steps["us"]
        keep = off <= max(3.0 * float(np.median(off)), 0.02)
    said = f"fitted from {int(keep.sum())} of {len(left)} whole steps"
    return {"step_s": float(f"{constant_us * 1e-6:.6g}"), "seq_s": float(f"{row_us * 1e-6:.6g}"), "from": said}


def _tables(rows: KernelRows, model: Model, gpu: Gpu) -> tuple[dict[str, dict[str, Curve]], tuple[str, ...]]:
    """Curves by where they count (layer, step, rows), and the names of the curves that are assumed, not measured."""
    layer, step = split_ops(op_curves(rows.table("dense"), "tokens"))
    sampled = op_curves(rows.table("sampled"), "seqs")
    gemm = rows.table("gemm")
    if len(gemm["us"]):
        surface = gemm_surface(gemm)
        sizes = np.unique(gemm["m"])
        products = layer_products(model, rows.tensor_parallel)
        layer |= {op: product_curve(surface, n, k, sizes) for op, (n, k) in products.items() if op not in layer}
        if "lm_head" not in sampled:
            vocab = -(-model.vocab // rows.tensor_parallel)
            sampled["lm_head"] = product_curve(surface, vocab, model.hidden, sizes[sizes <= MOST_ROWS])
    if not layer:
        hint = "a profile needs rows of the kinds dense or gemm, and attention"
        raise InputError("no rows of dense operators to fit", hint=hint)
    missing = []
    if not {"norm", "rope", "activation"} & set(layer):
        around = elementwise(model, gpu, rows.tensor_parallel)
        layer |= around
        missing += list(around)
    if "sampler" not in sampled:
        sampled["sampler"] = sampler(model, gpu)
        missing.append("sampler")
    return {"layer": layer, "step": step, "rows": sampled}, tuple(missing)


def _all_reduce(rows: KernelRows, model: Model, gpu: Gpu) -> tuple[Curve, str]:
    """A step's all-reduces over tokens, and their source."""
    table = rows.table("all_reduce")
    if not len(table["us"]):
        gb_s, latency_us = LINKS.get(gpu.name, (gpu.link_gb_s, NVLINK_US if gpu.link_gb_s > 100 else PCIE_US))
        reduce = nominal_all_reduce(model, rows.tensor_parallel, gb_s, latency_us)
        return reduce, f"nominal link of {gb_s:g} GB/s, {latency_us:g} us a call"
    tokens = table["bytes"] / (model.hidden * ACTIVATION_BYTES)
    return curve(tokens, table["us"] * 2 * model.layers), "measured"


def fit_attention(table: Table, launch: KernelLaunch | None = None) -> dict[str, Any]:
    """Fit a profile's attention: a surface for decodes, and one for prompts, joint where they were measured so."""
    alone = (table["chunk"] == 0) & (table["seqs"] > 0)
    if not alone.any():
        raise InputError("no rows of decode attention to fit")
    decode = decode_surface(select(table, alone))
    mixed = (table["chunk"] > 0) & (table["seqs"] > 0)
    how: dict[str, Any]
    if mixed.any():
        prompt, knee = joint_surface(select(table, table["chunk"] > 0), launch)
        how = {"prompts": "joint", "knee_keys": knee}
    else:
        prompt = prefill_surface(select(table, table["chunk"] > 0))
        how = {"prompts": "apart", "launch_us": min(decode.physics.constant_us, prompt.physics.constant_us)}
    return {**how, "decode": of_surface(decode), "prompt": of_surface(prompt)}


def decode_surface(table: Table) -> Surface:
    """Fit decode attention over (seqs, context)."""
    return fit_surface(DECODE, [table["seqs"], table["context"]], table["us"])


def joint_surface(table: Table, launch: KernelLaunch | None = None) -> tuple[Surface, float]:
    """Fit joint attention over (chunk, cached, seqs, context), and the knee of its physics.

    Rows that fill no grid are fitted by the GPU's schedule, where `launch` says what that is.
    """
    columns = [table["chunk"], table["cached"], table["seqs"], np.where(table["seqs"] > 0, table["context"], 0.0)]
    fresh, sizes = (0.0, *GRID), np.unique(columns[2])
    grid = [_doublings(columns[0], GRID), _doublings(columns[1], fresh), sizes, _doublings(columns[3], fresh)]
    if launch is not None and not is_dense(columns, grid):
        return scheduled_surface(launch, JOINT_AXES, columns, table["us"]), launch.knee_keys
    knee = find_knee(columns, table["us"])
    return fit_surface(joint(knee), columns, table["us"], grid), knee


def prefill_surface(table: Table) -> Surface:
    """Fit the attention of prompts alone over (chunks, tokens of each)."""
    return fit_surface(PREFILL, [table["chunks"], table["chunk"]], table["us"])


TILED = ("qkv", "output_projection", "gate_up", "down", "lm_head")
"""Matrix products: their kernels pad to a tile, so a count between two others costs as much as the upper one."""

TILE = 16  # their kernels pad rows to at least this many


def curve(counts: Array, us: Array, *, tiled: bool = False) -> Curve:
    """A curve through the medians of the rows at each count."""
    known = np.unique(counts)
    medians = np.array([np.median(us[counts == count]) for count in known])
    return make_curve(known, medians, TILE if tiled else 0)


def op_curves(table: Table, count: str) -> dict[str, Curve]:
    """A curve for each operator of a table of `dense` or `sampled` rows."""
    found = {}
    for op in np.unique(table["op"]).tolist():
        here = table["op"] == op
        found[str(op)] = curve(table[count][here], table["us"][here], tiled=op in TILED)
    return found


def split_ops(curves: dict[str, Curve]) -> tuple[dict[str, Curve], dict[str, Curve]]:
    """Curves of a layer's operators, and of those that run once a step."""
    step = {op: curve for op, curve in curves.items() if op in STEP_OPS}
    return {op: curve for op, curve in curves.items() if op not in step}, step


def _experts(table: Table, model: Model) -> Experts:
    """Fit the experts of a mixture over (tokens, activated)."""
    surface = fit_surface(EXPERTS, [table["tokens"], table["activated"]], table["us"])
    return Experts(surface, model.experts, model.active_experts)


def _doublings(column: Array, grid: Sequence[float]) -> Array:
    """The values of a column that are on the grid; all of them where these are fewer than six."""
    known = np.unique(column)
    doublings = known[np.isin(known, grid)]
    return doublings if len(doublings) >= 6 else known
