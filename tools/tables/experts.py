"""Tables of experts of a GPU under one version of an engine from aiconfigurator's moe_perf.parquet: coded, tested.

All sizes are kept: a file of a GPU has a few hundred kilobytes. One cell (a model's experts, divided among so many
GPUs) was measured with one kernel, the one that vLLM's own choice gives there, and that choice is kept by name: the
source builds vLLM's layer and lets it choose (collector/vllm/collect_moe.py, ai-dynamo/aiconfigurator). On Hopper, for
one, vLLM takes Triton for fp8 with scales by block where experts are divided by width, and FlashInfer's CUTLASS where
they are shared (vllm/model_executor/layers/fused_moe/oracle/fp8.py, 0.17.1).

TensorRT-LLM's are kept of Hopper alone. On B200 to GB300 servers ask for its backend TRTLLM (`moe_config` in
SemiAnalysisAI/InferenceX, benchmarks/single_node/dsr1_fp4_b200_trt.sh), whose kernels vLLM and SGLang take too
(flashinfer_trtllm): of DeepSeek-V3 in nvfp4 their times are equal within 5 % up to 256 tokens. Of SGLang and
TensorRT-LLM the balanced and the gentler uneven loads are kept, those that `routed_experts` takes by default.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from calibration.fit import of_physics
from calibration.heldout import summary
from calibration.rows import TOLERANCE
from calibration.sources import AICONFIGURATOR_CORE, AICONFIGURATOR_ENGINES, Source, parquet
from calibration.surface_fit import Shape, fit_physics
from calibration.tabulate import coded, write_tables
from simulator.hardware.gpus import Gpu, find_gpu
from simulator.hardware.models import EXPERT_BYTES
from simulator.timing.profile.surface import Array, Physics
from simulator.timing.tables.experts import (
    BALANCED,
    GENTLE,
    SCHEMA,
    SUFFIX,
    VERSION,
    WIDENED,
    Cell,
    ExpertKernels,
    ExpertTables,
    backend_of,
    estimated,
    expert_counts,
    load_expert_tables,
)
from tools.tables.experts_order import without_dearer, without_longer_parts, without_slow_sizes
from tools.tables.kernels import DATA_CENTRE, WHEEL

if TYPE_CHECKING:
    import pandas as pd


# Errors of tables of experts on what they leave out to see.
#
# Regimes: `models` (all cells of a model, from those of the others), `parallel` (a cell, from the same model and
# the others divided among other numbers of GPUs), `tokens` (every other size, from those beside it: from twice as
# far as any step is).

Errors = dict[str, dict[str, dict[str, float]]]


def errors_of(tables: ExpertTables) -> Errors:
    """Errors by precision and regime, in percent (`calibration.heldout.summary`)."""
    found: Errors = {}
    for precision, kernels in tables.precisions.items():
        load = BALANCED if any(BALANCED in of.log_us for of in kernels.cells.values()) else GENTLE
        regimes = {
            "models": list(_estimated(tables, precision, kernels, load, models=True)),
            "parallel": list(_estimated(tables, precision, kernels, load, models=False)),
            "tokens": [_every_other(tables.tokens, of.log_us[load]) for of in kernels.cells.values()
                       if load in of.log_us],
        }  # fmt: skip
        regimes = {name: [each for each in errors if len(each)] for name, errors in regimes.items()}
        found[f"experts_{precision}"] = {
            name: summary(np.concatenate(errors)) for name, errors in regimes.items() if errors
        }
    return found


def _estimated(
    tables: ExpertTables, precision: str, kernels: ExpertKernels, load: str, models: bool
) -> Iterator[Array]:
    for cell, of in kernels.cells.items():
        if load not in of.log_us:
            continue
        rest = {
            (other, precision): each
            for other, each in kernels.cells.items()
            if load in each.log_us and other != cell and not (models and _of_one_model(cell, other))
        }
        if rest:
            found, _ = estimated(tables, rest, cell, precision, load)
            known = ~np.isnan(of.log_us[load])
            yield np.exp(found[known] - of.log_us[load][known]) - 1.0


def _of_one_model(one: Cell, other: Cell) -> bool:
    """True if two cells come from one model, or from models of the same sizes."""
    return (one.hidden, one.experts, one.top_k) == (other.hidden, other.experts, other.top_k)


def _every_other(tokens: Array, log_us: Array) -> Array:
    known = np.flatnonzero(~np.isnan(log_us))
    left, kept = known[1:-1:2], np.union1d(known[::2], known[-1:])
    us = np.exp(log_us)
    return np.asarray(np.interp(tokens[left], tokens[kept], us[kept]) / us[left] - 1.0)


# The tables.


PRECISIONS = {
    "bfloat16": "bf16",
    "fp8": "fp8",
    "fp8_block": "fp8_block",
    "int4_wo": "int4",
    "nvfp4": "nvfp4",
    "w4a16_mxfp4": "mxfp4",
    "w4a8_mxfp4_mxfp8": "mxfp4_mxfp8",
}
"""The source's words for a precision, and ours."""

TWO_MATRICES = ((2688, 1856), (1024, 2688), (2048, 5120))
"""Hidden sizes and widths of experts without a gate (Nemotron's): of two matrices, while all others have three."""

OWN_GROUPS = ((7168, 2048, 8, 256),)
"""Hidden size, width, k and experts of models that choose among groups of experts (DeepSeek-V3's four of eight).

Where the source lets the layer choose by its logits (vLLM's since 0.24, SGLang's), a token's experts stand in more than
four groups, and those outside the best four are taken from the rest of these, from the first on. Balanced logits end up
in half of the experts: up to twice as fast as the memory could read all of them. The first GPU that shares the experts
gets most: with balanced loads 1.6 times as slow as with uneven ones at 16,384 tokens, where it is 0.6 to 0.9 times in
each of the other models; with uneven ones 2.0 times as slow as where experts are divided by width (others 1.1 to 1.5).
So of such rows only uneven loads of experts that are divided by width are kept."""

_COMPUTED_IN = {"int4": "bf16", "mxfp4": "bf16", "mxfp4_mxfp8": "fp8", "nvfp4": "nvfp4"}

NOT_TAKEN: Mapping[str, tuple[str, str]] = {
    "vllm_marlin_int4_moe": ("experts int4", "rows of a Triton kernel, where vLLM takes Marlin"),
    "vllm_mxfp4_moe": ("experts mxfp4", "rows that take as long for one expert on a GPU as for all 128"),
}
"""Kernels whose rows are not kept, what they are called among those left out, and why.

Up to 0.22 the source priced int4 by `fused_experts`, which is Triton's kernel whatever the rows are called, where vLLM
takes Marlin; they are 2 to 3 times as slow as Marlin's rows since 0.24. Its rows of mxfp4 under vLLM 0.19 computed all
experts wherever some were shared, and none are of experts divided among more than two GPUs; those of 0.24 are of the
same kernel (Triton's), with both."""

CHOOSING = ("vllm", "sglang")
"""Engines of which the source measures the layer that chooses; of TensorRT-LLM the experts are given."""

GIVEN = ("vllm_fused_moe",)
"""Kernels that were given the chosen experts, whatever the model's way to choose."""

NO_GATE = "nongated"
"""In the name of a kernel of TensorRT-LLM: for experts of two matrices."""

FORM = Shape(("experts", "pairs", "tokens", "all", "shared"), (("flops",), ("bytes",)))

COLUMNS = (
    "moe_dtype", "kernel_source", "num_tokens", "hidden_size", "inter_size", "topk", "num_experts", "moe_tp_size",
    "moe_ep_size", "distribution", "latency",
)  # fmt: skip

SHIPPED: Mapping[str, tuple[str, str]] = {
    "a100-80gb-vllm-0.14": ("a100-80gb", "a100_sxm/moe/vllm/0.14.0"),
    "h100-vllm-0.24": ("h100", "h100_sxm/moe/vllm/0.24.0"),
    "h200-vllm-0.19": ("h200", "h200_sxm/moe/vllm/0.19.0"),
    "h200-vllm-0.24": ("h200", "h200_sxm/moe/vllm/0.24.0"),
    "b200-vllm-0.24": ("b200", "b200_sxm/moe/vllm/0.24.0"),
    "b300-vllm-0.24": ("b300", "b300_sxm/moe/vllm/0.24.0"),
    "gb200-vllm-0.24": ("gb200", "gb200/moe/vllm/0.24.0"),
    "gb300-vllm-0.24": ("gb300", "gb300/moe/vllm/0.24.0"),
    "l40s-vllm-0.24": ("l40s", "l40s/moe/vllm/0.24.0"),
    "rtx-pro-6000-vllm-0.24": ("rtx-pro-6000", "rtx_pro_6000_server/moe/vllm/0.24.0"),
    **{f"{gpu}-sglang-0.5": (gpu, f"{place}/moe/sglang/0.5.14") for gpu, place in DATA_CENTRE.items()},
    **{f"{gpu}-trtllm-1.3": (gpu, f"{gpu}_sxm/moe/trtllm/1.3.0rc20") for gpu in ("h100", "h200")},
}
"""The tables of experts that come with batchlab: GPU, and folder below systems/data of aiconfigurator-core."""


def tabulate_experts(folder: Path, name: str, gpu: str) -> dict[str, Any]:
    """The JSON of a folder's experts. InputError where its file or its GPU is not known."""
    rows = parquet(Source(folder, "", ""), "moe_perf", COLUMNS)
    card = find_gpu(gpu)
    rows = rows.assign(
        precision=rows["moe_dtype"].map(PRECISIONS),
        us=rows["latency"] * 1e3,
        width=rows["inter_size"] // rows["moe_tp_size"],
        held=rows["num_experts"] // rows["moe_ep_size"],
        backend=rows["kernel_source"].map(backend_of),
    )
    engine = folder.parent.name
    left, rows = _left_out(rows, engine)
    tokens = np.sort(rows["num_tokens"].unique()).astype(float)
    document: dict[str, Any] = {
        "schema": SCHEMA,
        "version": VERSION,
        "name": f"{name}-experts",
        "gpu": card.name,
        "software": f"{AICONFIGURATOR_ENGINES[engine]} {folder.name}",
        "sources": [{**AICONFIGURATOR_CORE, "version": WHEEL, "path": f"systems/data/{'/'.join(folder.parts[-4:])}"}],
        "left_out": left,
        "rejected": {},
        "tokens": [int(size) for size in tokens],
        "precisions": {},
    }
    kept = []
    for precision in PRECISIONS.values():
        some = rows[rows["precision"] == precision]
        if len(some):
            possible = _possible(some, precision, card)
            document["rejected"][f"experts {precision}"] = [int((~possible).sum()), len(some)]
            kept.append(some[possible])
    for some in kept:
        document["precisions"][some["precision"].iloc[0]] = _precision(some, kept, tokens)
    document = without_longer_parts(without_slow_sizes(without_dearer(document)))
    document["errors"] = errors_of(load_expert_tables(document))
    return document


def _left_out(rows: pd.DataFrame, engine: str) -> tuple[dict[str, str], pd.DataFrame]:
    """Split the rows: those left out, each with its reason, and the others."""
    left: dict[str, str] = {}
    sizes = list(zip(rows["hidden_size"], rows["inter_size"], strict=True))
    two = np.array([size in TWO_MATRICES for size in sizes]) | rows["kernel_source"].str.contains(NO_GATE).to_numpy()
    if two.any():
        left["experts without a gate"] = f"{two.sum():,} rows of two matrices; all others have three"
    models = zip(*(rows[name] for name in ("hidden_size", "inter_size", "topk", "num_experts")), strict=True)
    grouped = np.array([each in OWN_GROUPS for each in models]) & (engine in CHOOSING)
    grouped &= ((rows["distribution"] == BALANCED) | (rows["moe_ep_size"] > 1)).to_numpy()
    grouped &= ~rows["kernel_source"].isin(GIVEN).to_numpy()
    if grouped.any():
        left["loads of DeepSeek-V3"] = (
            f"{grouped.sum():,} rows; its choice among groups of experts gave the source's logits other loads"
        )
    other = rows["kernel_source"].isin(NOT_TAKEN).to_numpy()
    for kernel, (name, why) in NOT_TAKEN.items():
        if count := int((rows["kernel_source"] == kernel).sum()):
            left[name] = f"{count:,} {why}"
    rows = rows[~(two | grouped | other)]
    return left, rows if engine == "vllm" else rows[rows["distribution"].isin((BALANCED, GENTLE))]


def _possible(rows: pd.DataFrame, precision: str, gpu: Gpu) -> NDArray[np.bool_]:
    """Rows that are no faster than the GPU: operations of all, and bytes of the experts that must be read."""
    tokens, hidden, width, held, experts, top_k = _columns(rows)
    weights = 3.0 * hidden * width
    pairs = tokens * top_k * held / experts
    flops = 2.0 * pairs * weights
    even = rows["distribution"].to_numpy() == BALANCED
    active = np.where(even, np.minimum(held, np.floor(pairs)), np.where(held == experts, top_k, 0.0))
    moved = active * weights * EXPERT_BYTES[precision]
    peak = gpu.tflops(_COMPUTED_IN.get(precision, precision)) * 1e6
    least = np.maximum(flops / peak, moved / (gpu.bandwidth_gb_s * 1e3))
    return np.asarray(rows["us"].to_numpy(float) * TOLERANCE >= least)


def _precision(rows: pd.DataFrame, all_rows: Sequence[pd.DataFrame], tokens: Array) -> dict[str, Any]:
    """The experts of one precision: the physics of its kernels, and the cells.

    Marlin is one kernel for all weights that it widens: its physics are fitted to `all_rows` of theirs.
    """
    physics = {}
    for backend, some in rows.groupby("backend"):
        alike = [each for each in all_rows if each["precision"].iloc[0] in WIDENED] if backend == "marlin" else [some]
        physics[str(backend)] = of_physics(_fit([each[each["backend"] == backend] for each in alike]))
    kernels = sorted(rows["kernel_source"].unique())
    shapes = []
    for (wide, inter, k, count), of in rows.groupby(["hidden_size", "inter_size", "topk", "num_experts"]):
        parallel = {}
        for (tensor, expert), some in of.groupby(["moe_tp_size", "moe_ep_size"]):
            loads = {str(load): _coded(each, tokens) for load, each in some.groupby("distribution")}
            (kernel,) = some["kernel_source"].unique()
            parallel[f"{tensor}/{expert}"] = {"kernel": kernels.index(kernel), **loads}
        sizes = (int(str(size)) for size in (wide, inter, k, count))
        shape = dict(zip(("hidden", "intermediate", "top_k", "experts"), sizes, strict=True))
        shapes.append({**shape, "parallel": parallel})
    return {"physics": physics, "kernels": kernels, "shapes": shapes}


def _fit(tables: Sequence[pd.DataFrame]) -> Physics:
    """The physics of a kernel from its rows of balanced loads; of all, where there are none."""
    features: dict[str, list[Array]] = {name: [] for name in FORM.features}
    us = []
    for rows in tables:
        even = rows[rows["distribution"] == BALANCED]
        fitted = even if len(even) else rows
        for sizes, of in fitted.groupby(["hidden_size", "width", "held", "num_experts", "topk"]):
            cell = Cell(*(int(str(size)) for size in sizes))
            weight_bytes = EXPERT_BYTES[of["precision"].iloc[0]]
            counts = expert_counts(of["num_tokens"].to_numpy(float), cell, weight_bytes)
            for name, values in counts.items():
                features[name].append(values)
            us.append(of["us"].to_numpy(float))
    return fit_physics(FORM, {name: np.concatenate(values) for name, values in features.items()}, np.concatenate(us))


def _columns(rows: pd.DataFrame) -> tuple[Array, ...]:
    names = ("num_tokens", "hidden_size", "width", "held", "num_experts", "topk")
    return tuple(rows[name].to_numpy(float) for name in names)


def _coded(rows: pd.DataFrame, tokens: Array) -> list[int | None]:
    """Logarithms at the sizes; repeated measurements by their median."""
    us = rows.groupby("num_tokens")["us"].median().reindex(tokens)
    return coded(np.log(us.to_numpy(float)))


def make(root: Path, folder: Path, name: str) -> Path | None:
    """Make shipped tables again, in `folder / "tables"`; None where there is no source of them below `root`."""
    gpu, place = SHIPPED[name]
    if not (root / place).is_dir():
        return None
    path = folder / "tables" / f"{name}{SUFFIX}"
    write_tables(tabulate_experts(root / place, name, gpu), path)
    return path


NAMES = tuple(SHIPPED)
