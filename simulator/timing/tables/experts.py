"""A layer's experts from tables: the schema, the routed ones at any load, and the shared ones beside them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from simulator.division import cdiv
from simulator.errors import InputError
from simulator.hardware.models import EXPERT_BYTES, Model
from simulator.timing.formula_cost import ACTIVATION_BYTES
from simulator.timing.profile.kernels import RoutedExperts
from simulator.timing.profile.profile_schema import DocumentKind, expert_precision, read_physics
from simulator.timing.profile.surface import Array, Curve, Physics, make_curve
from simulator.timing.tables.table_schema import (
    EXTRAPOLATED,
    MEASURED,
    VersionTables,
    header,
    nearest_versions,
    unscaled,
)

# Tables of experts as JSON (gzipped): a layer's routed experts on one GPU under one version of one engine.
#     {"schema": "batchlab expert tables", "version": 1, "name": "h200-vllm-0.24-experts", "gpu": "h200",
#      "software": "vLLM 0.24.0", "sources": [...], "rejected": {...}, "errors": {...}, "tokens": [1, 2, 4, ...],
#      "precisions": {"mxfp4": {"physics": {"triton": {...}}, "kernels": ["vllm_gptoss..."], "shapes": [
#          {"hidden": 2880, "intermediate": 2880, "top_k": 4, "experts": 128,
#           "parallel": {"2/1": {"kernel": 0, "balanced": [...], "power_law_1.2": [...]}}}]}}}
#
# `physics` are by `backend_of` the kernels. `parallel` is by GPUs that divide each expert's width / GPUs that
# divide the experts. The lists hold 10^3 x log(microseconds) at `tokens`, those of all GPUs that share the experts
# together; null where nothing was measured. Names of loads (`balanced`, ...) are the source's: `experts` says what
# they mean.

SCHEMA = "batchlab expert tables"
VERSION = 1
KIND = DocumentKind(SCHEMA, VERSION, "tables of experts", "make tables")
SUFFIX = "-experts.json.gz"
BACKENDS = ("marlin", "triton", "flashinfer_cutlass", "flashinfer_trtllm")


class Cell(NamedTuple):
    """A layer's experts as one GPU holds them: `width` of each expert and `held` of them, of all `experts`."""

    hidden: int
    width: int
    held: int
    experts: int
    top_k: int


@dataclass(frozen=True, slots=True)
class Measured:
    """One cell: the kernel that was measured, and log(microseconds) over tokens by load, NaN where unknown."""

    kernel: str
    log_us: Mapping[str, Array]


@dataclass(frozen=True, slots=True)
class ExpertKernels:
    """The kernels of one precision by cell, and their physics by backend, over `experts.expert_counts`."""

    physics: Mapping[str, Physics]
    cells: Mapping[Cell, Measured]


@dataclass(frozen=True, slots=True, eq=False)
class ExpertTables(VersionTables):
    """All experts by precision; `tokens` are the axis of all lists."""

    tokens: Array
    precisions: Mapping[str, ExpertKernels]


@lru_cache(maxsize=16)
def read_expert_tables(path: Path) -> ExpertTables:
    """Tables from a file. InputError where it cannot be read, or is of another schema or version."""
    return load_expert_tables(KIND.read(path), str(path))


def load_expert_tables(document: object, file: str | None = None) -> ExpertTables:
    """Tables from the parsed JSON; `file` is where errors say it came from."""
    with KIND.opened(document, file) as held:
        tokens = np.asarray(held["tokens"], dtype=np.float64)
        return ExpertTables(
            **header(held),
            tokens=tokens,
            precisions={name: _kernels(part, name, len(tokens)) for name, part in held["precisions"].items()},
        )


def beside(folder: Path, gpu: str, software: str) -> list[ExpertTables]:
    """The tables of that GPU in a folder, those whose version is nearest to `software` first."""
    found = [read_expert_tables(path) for path in sorted(folder.glob(f"{gpu}-*{SUFFIX}"))]
    return nearest_versions(found, gpu, software)


def _kernels(document: dict[str, Any], name: str, size: int) -> ExpertKernels:
    kernels, cells = document["kernels"], {}
    for shape in document["shapes"]:
        experts, wide = int(shape["experts"]), int(shape["intermediate"])
        for parallel, part in shape["parallel"].items():
            tensor, expert = map(int, parallel.split("/"))
            cell = Cell(int(shape["hidden"]), wide // tensor, experts // expert, experts, int(shape["top_k"]))
            loads = {load: _scaled(values, size) for load, values in part.items() if load != "kernel"}
            cells[cell] = Measured(str(kernels[part["kernel"]]), loads)
    return ExpertKernels({backend: read_physics(each, name) for backend, each in document["physics"].items()}, cells)


def backend_of(kernel: str) -> str:
    """vLLM's word (`--moe-backend`) for a kernel that a source names; other for none of them."""
    if kernel == "vllm_fused_moe":
        return "triton"
    return next((name for name in BACKENDS if name in kernel), "other")


def _scaled(values: list[int | None], size: int) -> Array:
    if len(values) != size:
        raise ValueError(f"{len(values)} times for {size} sizes")
    return unscaled(values)


# A layer's routed experts from tables: measured cells, others by what they read and compute, loads of any evenness.
#
# Sources load the experts in ways of their own: `balanced` gives each as many tokens as any other, `power_law_1.2`
# a few of them most. Neither is what tokens do that choose independently and evenly (`even`, as everywhere in
# batchlab): then some experts have no token and are not read. Its times follow from the balanced ones, because a
# grouped kernel does the work of its experts one beside another, so its time is a sum over them:
#     even(T) = balanced(A / k) + sum over n > 1 of P(n) (balanced(n E / k) - balanced(E / k))
#
# A = E (1 - (1 - k/E)^T) experts have a token; balanced(A / k) has so many with one token each. P(n) is the
# binomial probability that an expert has n of T tokens, balanced(n E / k) the time with n for each.
#
# GPUs that share the experts wait for the one that has most of what the tokens chose (`fullest_curve`): with 4
# tokens of 8 experts each on 8 GPUs that is 6.8 experts, and 4 in the mean.
#
# A cell that was not measured has the physics of its counts, times the mean correction of the nearest cells, taken
# where an expert has as many tokens: tiles are filled alike.

EVEN, BALANCED = "even", "balanced"
LOADS = (EVEN, BALANCED, "power_law_1.01", "power_law_1.2")  # how tokens spread over experts
AUTO = "auto"  # the kernel that vLLM took where a cell was measured, in place of a name of `BACKENDS`
WIDENED = ("mxfp4", "int4")
"""Precisions that Marlin widens to bf16 on the way: one kernel, whose times differ by the bytes that it reads."""
MARLIN_N, MARLIN_K = 256, 128
"""vLLM pads mxfp4 experts for Marlin: hidden sizes to multiples of 256, widths of 128 (`create_weights` of
vllm/model_executor/layers/quantization/mxfp4.py). So gpt-oss reads 9 % more on one GPU, 14 % on two to eight."""
Cells = Mapping[tuple[Cell, str], Measured]  # what was measured, by cell and precision
GENTLE = "power_law_1.01"
"""The gentler of the sources' uneven loads, and that of `even` without balanced rows."""
USUAL = "usual"
"""`even` up to a tile of tokens an expert, beyond the longer of it and `GENTLE`: each lacks what a real gate does.

- A small batch takes as long as its experts are read. `GENTLE` is rounded to whole tokens, so that experts with less
  than half a token have none (power_law_logits_v3, collector/vllm/collect_moe.py of ai-dynamo/aiconfigurator): of 256
  experts 64 tokens with 8 each read 180, where tokens that choose read 222. Measured times differ so, by 10 to 20 %.
- A prompt takes as long as its tiles. Balanced rows of 2^n tokens fill each tile to the last row, so `even` has whole
  tiles alone; loads that differ leave half a tile of each expert empty, and `GENTLE` was measured with that.
- GPUs that share experts wait for the fullest. Of 32 with DeepSeek-R1, whose gate was trained to be even, it got 2.56
  times the mean of 1,024, with a standard deviation of 0.48 (examples/wide_ep/ep_load_balancer/README.md of
  TensorRT-LLM, without a balancer); `GENTLE` gives 2.5 and 0.6 there.
"""
GRAPH_TOKENS = (3, 6, 12, 24, 40, 56, 72, 112, 144, 224)
"""Beside the measured sizes, those at which a curve of even loads is worked out."""
SMALL_TILE, TILE, SMALL_LOAD = 16, 64, 64
"""Rows to which an expert's tokens are padded: few, up to `SMALL_LOAD` of them, more beyond."""
MOST_SHARING = 64  # most GPUs among which experts are shared
NEAREST = 4  # cells whose corrections are averaged
OTHER_KERNEL = 4.0
"""Octaves by which a cell that is divided in the other way counts as farther: engines choose kernels by it."""
BLOCK = 128  # weights of fp8 with scales by block are divided in whole blocks
FARTHEST = 2.0  # octaves beyond the widest and narrowest cells up to which they are extrapolated


@dataclass(frozen=True, slots=True)
class FoundExperts:
    """Microseconds of one GPU's experts over the tokens of all GPUs that share them; how they were come by."""

    curve: Curve
    how: str
    words: str
    kernel: str


def expert_counts(tokens: Array, cell: Cell, weight_bytes: float) -> Mapping[str, Array]:
    """The work of balanced experts on one GPU.

    Experts with tokens, operations (10^6) with tokens padded to tiles, bytes (10^3) of weights, of what goes in and
    comes out (`pairs`) and of what all GPUs look through (`tokens`), all experts, whether other GPUs hold some.
    """
    hidden, width, held, experts, top_k = (float(size) for size in cell)
    pairs = tokens * top_k * held / experts
    active = np.minimum(held, np.maximum(pairs, 1.0))
    each = np.maximum(pairs / active, 1.0)
    tile = np.where(each <= SMALL_LOAD, SMALL_TILE, TILE)
    padded = active * np.ceil(each / tile) * tile
    return {
        "experts": active,
        "flops": 6e-6 * padded * hidden * width,
        "bytes": 3e-3 * active * hidden * width * weight_bytes,
        "pairs": 1e-3 * ACTIVATION_BYTES * pairs * (2.0 * hidden + 3.0 * width),
        "tokens": 1e-3 * ACTIVATION_BYTES * tokens * hidden,
        "all": np.full_like(tokens, experts),
        "shared": np.full_like(tokens, held < experts),
    }


def cell_of(model: Model, tensor: int, expert: int) -> Cell:
    """The part of a layer on one GPU, where `tensor` GPUs divide the widths, or `expert` GPUs the experts."""
    width, held = model.intermediate // tensor, model.experts // expert
    return Cell(model.hidden, width, held, model.experts, model.active_experts)


def find_experts(
    tables: ExpertTables, model: Model, tensor: int, expert: int, load: str = EVEN, backend: str = AUTO
) -> FoundExperts:
    """The routed experts of a layer of the model. InputError that names what was not measured."""
    if load == USUAL:
        even = find_experts(tables, model, tensor, expert, EVEN, backend)
        with suppress(InputError):  # some tables have no such rows
            uneven = find_experts(tables, model, tensor, expert, GENTLE, backend)
            return _longer(even, uneven, SMALL_TILE * model.experts / model.active_experts)
        return even
    precision = expert_precision(model)
    cells = _cells(tables, model, precision, backend)
    _refuse(tables, cells, model, precision, tensor, expert)
    measured = sorted({name for each in cells.values() for name in each.log_us})
    base = BALANCED if load == EVEN else load
    said = f"{load} loads"
    if base not in measured:
        if load != EVEN:
            what = f"{tables.name} has no experts under {load} loads"
            raise InputError(what, hint=f"measured: {', '.join(measured)}")
        base, said = GENTLE, f"{GENTLE} loads, for balanced ones were not measured"
    cell = cell_of(model, tensor, expert)
    if backend == "marlin" and precision == "mxfp4":
        hidden, width = cdiv(cell.hidden, MARLIN_N) * MARLIN_N, cdiv(cell.width, MARLIN_K) * MARLIN_K
        cell = cell._replace(hidden=hidden, width=width)
    known = cells.get((cell, precision))
    if known is not None and base in known.log_us:
        log_us, how, kernel = _filled(tables, cell, precision, known, base), MEASURED, known.kernel
    else:
        log_us, kernel = estimated(tables, cells, cell, precision, base)
        how, said = EXTRAPOLATED, f"from the nearest measured sizes, {said}"
    curve = make_curve(tables.tokens, np.exp(log_us))
    if load == EVEN and base == BALANCED:
        curve = even_curve(curve, cell.experts, cell.top_k)
        if expert > 1:
            curve = fullest_curve(curve, cell.top_k, expert)
    return FoundExperts(curve, how, f"{precision}, {said}", kernel)


def _longer(even: FoundExperts, uneven: FoundExperts, tiled: float) -> FoundExperts:
    """Even loads up to a tile an expert; beyond, the longer of both at each number of tokens."""
    if even.curve == uneven.curve:
        return even
    counts = np.union1d(even.curve.counts, uneven.curve.counts)
    us = [max(even.curve.at(n), uneven.curve.at(n)) if n >= tiled else even.curve.at(n) for n in counts]
    return replace(even, curve=make_curve(counts, np.asarray(us)), words=f"{even.words}, or {GENTLE} if longer")


def routed_experts(
    tables: ExpertTables, model: Model, ranks: int, load: str = EVEN, backend: str = AUTO, whole: bool = False
) -> tuple[RoutedExperts, FoundExperts]:
    """All of a model's routed experts on `ranks` GPUs that divide them by width, or among more that share them.

    With `whole` these GPUs too hold whole experts.
    """
    tensor, expert = (1, ranks) if whole else (ranks, 1)
    alone = find_experts(tables, model, tensor, expert, load, backend)
    shared = {}
    for gpus in range(2, MOST_SHARING + 1):
        if model.experts % gpus == 0:
            try:
                shared[gpus] = find_experts(tables, model, 1, gpus, load, backend).curve
            except InputError:  # said where so many GPUs are asked for
                continue
    return RoutedExperts(alone.curve, model.moe_layers / model.layers, ranks, shared), alone


def chooses_experts(kernel: str) -> bool:
    """True if the measured kernel takes the router's logits; otherwise it was given the chosen experts.

    SGLang hands them over for FlashInfer's (`TopKOutputFormat.BYPASSED`, sglang/srt/layers/moe/topk.py).
    """
    return "monolithic" in kernel or kernel.endswith("flashinfer_trtllm_moe")


def even_curve(balanced: Curve, experts: int, top_k: int) -> Curve:
    """The times of tokens that choose independently and evenly, from those of experts with equally many tokens."""
    known, us = np.asarray(balanced.counts), np.asarray(balanced.us)
    sizes = np.union1d(known, [size for size in GRAPH_TOKENS if known[0] <= size <= known[-1]])
    each = experts / top_k

    def at(tokens: Array) -> Array:
        return np.asarray(np.interp(tokens, known, us) + balanced.us_beyond * np.maximum(tokens - known[-1], 0.0))

    active = experts * (1.0 - (1.0 - top_k / experts) ** sizes)
    found = at(active / top_k)
    for place, tokens in enumerate(sizes):
        loads, chances = _binomial(int(tokens), top_k / experts)
        more = loads > 1
        found[place] += chances[more] @ (at(loads[more] * each) - at(np.array([each])))
    return make_curve(sizes, found)


def fullest_curve(mean: Curve, top_k: int, gpus: int) -> Curve:
    """The times of the GPU that most of the tokens' choices fall on, of `gpus` that share the experts, from those of a
    GPU with as many as the mean.

    It does what the mean one does for more tokens: for so many that this one has the mean of the largest of `gpus`
    binomial shares, taken as independent (within 5 % of drawn ones).
    """
    counts, us = np.asarray(mean.counts), []
    for tokens in counts:
        loads, chances = _binomial(int(tokens * top_k), 1.0 / gpus)
        most = loads[-1] - float((np.cumsum(chances)[:-1] ** gpus).sum())
        us.append(mean.at(most * gpus / top_k))
    return make_curve(counts, np.asarray(us))


def _binomial(tokens: int, chance: float) -> tuple[Array, Array]:
    """The loads of an expert that have any chance, and their probabilities."""
    if chance >= 1.0:
        return np.array([float(tokens)]), np.ones(1)
    mean, spread = tokens * chance, np.sqrt(tokens * chance * (1.0 - chance))
    first, last = max(0, int(mean - 9 * spread)), min(tokens, int(mean + 9 * spread) + 10)
    loads = np.arange(first, last + 1, dtype=np.float64)
    steps = np.log((tokens - loads[:-1]) / loads[1:]) + np.log(chance / (1.0 - chance)) if len(loads) > 1 else loads[1:]
    logs = np.concatenate([[0.0], np.cumsum(steps)])
    weights = np.exp(logs - logs.max())
    return loads, weights / weights.sum()


def has_experts(tables: ExpertTables, model: Model, backend: str = AUTO) -> bool:
    """True if the tables have experts of the model's precision, by that backend."""
    try:
        return bool(_cells(tables, model, expert_precision(model), backend))
    except InputError:
        return False


def errors_of_experts(tables: ExpertTables, model: Model) -> dict[str, Any]:
    """The held-out errors of the model's precision, by kind."""
    kind = f"experts_{expert_precision(model)}"
    errors = tables.document.get("errors", {})
    return {kind: errors[kind]} if kind in errors else {}


def _cells(tables: ExpertTables, model: Model, precision: str, backend: str) -> Cells:
    """The measured cells of a precision and, where a backend is named, of its kernels."""
    alike = WIDENED if backend == "marlin" and precision in WIDENED else (precision,)
    known = [name for name in alike if name in tables.precisions]
    if not known:
        what = f"{tables.name} has no experts of {precision}, which {model.name} needs"
        raise InputError(what, hint=f"measured: {', '.join(tables.precisions)}; or kind: roofline")
    cells = {(cell, name): of for name in known for cell, of in tables.precisions[name].cells.items()}
    found = {key: of for key, of in cells.items() if backend in (AUTO, backend_of(of.kernel))}
    if not found:
        there = sorted({backend_of(of.kernel) for of in cells.values()})
        what = f"{tables.name} has no {precision} experts by {backend}"
        raise InputError(what, hint=f"measured: {', '.join(there)}")
    return found


def _refuse(tables: ExpertTables, cells: Cells, model: Model, precision: str, tensor: int, expert: int) -> None:
    """Sizes that were not measured and are not to be extrapolated."""
    gpus = max(tensor, expert)
    of = f"{model.name} {'on' if expert == 1 else 'shared by'} {gpus} GPU{'s' if gpus > 1 else ''}"
    if not model.gated_mlp:
        raise InputError(f"{tables.name} has experts with three matrices; those of {model.name} have two")
    if model.intermediate % tensor:
        raise InputError(f"the experts' width of {model.intermediate} is not divided by {tensor} ({of})")
    if model.experts % expert:
        raise InputError(f"{model.experts} experts are not divided by {expert} ({of})")
    width = model.intermediate // tensor
    if precision == "fp8_block" and width % BLOCK:
        what = f"{of}: experts {width:,} wide are no whole blocks of {BLOCK} weights, as fp8_block has them"
        raise InputError(what, hint="a smaller tensor_parallel; vLLM refuses it too")
    for name, size in (("width", width), ("hidden", model.hidden), ("held", model.experts // expert)):
        known = [getattr(cell, name) for cell, _ in cells]
        low, high = min(known) / 2.0**FARTHEST, max(known) * 2.0**FARTHEST
        if not low <= size <= high:
            words = {"width": "experts {:,} wide", "hidden": "a hidden size of {:,}", "held": "{:,} experts on a GPU"}
            what = f"{of}: {words[name].format(size)} are too far from those that {tables.name} has of {precision}"
            raise InputError(what, hint=f"measured: {min(known):,} to {max(known):,}")


def _filled(tables: ExpertTables, cell: Cell, precision: str, of: Measured, load: str) -> Array:
    """The times with holes filled: as far from the physics as their neighbours along the tokens."""
    log_us = of.log_us[load]
    base = _log_physics(tables, cell, precision, precision, of.kernel)
    known = ~np.isnan(log_us)
    places = np.log(tables.tokens)
    filled = base + np.interp(places, places[known], (log_us - base)[known])
    return np.where(known, log_us, filled)


def _log_physics(tables: ExpertTables, cell: Cell, precision: str, fitted: str, kernel: str) -> Array:
    """log(microseconds) of a kernel by the physics fitted to a precision, for weights of another."""
    counts = expert_counts(tables.tokens, cell, EXPERT_BYTES[precision])
    us = tables.precisions[fitted].physics[backend_of(kernel)].us(counts)
    return np.asarray(np.log(np.asarray(us, dtype=np.float64)))


def estimated(tables: ExpertTables, cells: Cells, cell: Cell, precision: str, load: str) -> tuple[Array, str]:
    """log(microseconds) over tokens of a cell that was not measured, and the kernel of the nearest that was."""
    tokens = tables.tokens
    near = sorted((_distance(cell, key[0]), key) for key, of in cells.items() if load in of.log_us)[:NEAREST]
    weights = np.array([1.0 / (distance + 0.25) ** 2 for distance, _ in near])
    each = np.log(tokens * cell.top_k / cell.experts)
    total = np.zeros(len(tokens))
    for weight, (_, (other, theirs)) in zip(weights / weights.sum(), near, strict=True):
        of = cells[other, theirs]
        known = ~np.isnan(of.log_us[load])
        correction = of.log_us[load] - _log_physics(tables, other, theirs, theirs, of.kernel)
        loads = np.log(tokens * other.top_k / other.experts)
        ours = _log_physics(tables, cell, precision, theirs, of.kernel)
        total += weight * (ours + np.interp(each, loads[known], correction[known]))
    return total, cells[near[0][1]].kernel


def _distance(one: Cell, other: Cell) -> float:
    """Octaves between two cells; the number of experts in all and of a token counts half."""
    apart = np.abs(np.log2(np.asarray(one, dtype=np.float64) / np.asarray(other, dtype=np.float64)))
    divided = (one.held < one.experts) != (other.held < other.experts)
    return float(apart[:3].sum() + 0.5 * apart[3:].sum() + (OTHER_KERNEL if divided else 0.0))


# Experts that every token uses, computed beside the routed ones: what of their time is left to see.
#
# All three engines compute them on a second CUDA stream while the routed experts run, in batches of up to so many
# tokens. vLLM does so since 0.11.1 (VLLM_SHARED_EXPERTS_STREAM_TOKEN_THRESHOLD, vllm/envs.py), SGLang in its CUDA
# graphs (`forward_normal_dual_stream`, DUAL_STREAM_TOKEN_THRESHOLD, models/deepseek_v2.py and qwen2_moe.py),
# TensorRT-LLM in its own (`maybe_execute_in_parallel`, models/modeling_deepseekv3.py), which hold 512 requests at
# most by default here.
#
# A decoder with attention data parallel or with whole experts does as others do: TensorRT-LLM's condition is the
# graph alone (`do_multi_stream`, modules/multi_stream_utils.py). SGLang computes the one shared expert of
# DeepSeek-V3 as a 257th routed one where Triton's kernels divide experts by width, as on Hopper
# (`determine_num_fused_shared_experts`, models/deepseek_v2.py; not with experts on each GPU, nor with
# flashinfer_trtllm, which Blackwell takes): one expert more beside those that a step reads anyway, so nothing is
# added for it.
#
# That hides them wholly: DeepSeek-R1 in fp8 with 32 users on 8 B200 went from 23.35 to 22.09 ms a token by it (vLLM
# pull request 26440). The 1.26 ms that went are what the tables' products of its shared experts take, 1.2 ms a
# step.

MOST_BESIDE: Mapping[str, int] = {"vLLM": 256, "SGLang": 1024, "TensorRT-LLM": 512}
"""Tokens of a step up to which an engine overlaps both."""


def seen_beside(shared: Sequence[Curve], routed: RoutedExperts, engine: str) -> Curve:
    """Microseconds of a layer's shared experts by which it lasts longer than with its routed experts alone."""
    most = MOST_BESIDE.get(engine, 0)
    counts = np.unique([most, most + 1, *routed.alone.counts, *(count for curve in shared for count in curve.counts)])
    counts = counts[counts >= 1]
    whole = np.array([sum(curve.at(count) for curve in shared) for count in counts])
    hidden = np.array([routed.us(count) if count <= most else 0.0 for count in counts])
    return make_curve(counts, np.maximum(whole - hidden, 0.0))
