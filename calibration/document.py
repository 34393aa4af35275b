"""The document of a profile: its parts as plain JSON, and the check that its times are possible."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from simulator.hardware.gpus import find_gpu
from simulator.hardware.models import Model
from simulator.timing.cost import StepShape
from simulator.timing.profile import Profile, ProfileCost, read_profile
from simulator.timing.profile.kernels import Experts, Skew
from simulator.timing.profile.profile_schema import SCALE, described
from simulator.timing.profile.surface import Curve, Physics, Surface, SurfaceAxis
from simulator.timing.tables import compose, parts_of, read_tables
from simulator.timing.tables.experts import beside
from simulator.timing.tables.latent import find_latent

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
