"""A step's all-reduces over its tokens: as measured, among more GPUs than were measured, and with norms in them.

vLLM fuses all-reduces with the residual and the norm behind them on Hopper and Blackwell (`fuse_allreduce_rms`), as
long as a step's activations have at most `MOST_MIB` (vllm/compilation/passes/fusion/allreduce_rms_fusion.py, 0.16;
tuned in vllm pull request 24248). The kernel is FlashInfer's, from TensorRT-LLM, so its times are those of
TensorRT-LLM's tables of the same GPU. Beyond that an all-reduce is the communicator's own, and a norm stands behind
it. It matters most among eight B200, where 256 KiB take 26 microseconds by vLLM's own kernels and 8 by this one.
"""

from collections.abc import Mapping, Sequence
from types import MappingProxyType

import numpy as np

from simulator.errors import InputError
from simulator.hardware.gpus import Gpu
from simulator.hardware.models import Model
from simulator.timing.formula_cost import ACTIVATION_BYTES, NETWORK_GB_S, NETWORK_LATENCY_US
from simulator.timing.profile.surface import Array, Curve, make_curve
from simulator.timing.tables.table_schema import EXTRAPOLATED, MEASURED, PartSource, Tables, first, marked

LEAST_MEASURED = 4
"""Fewer GPUs say too little of all-reduces among many."""
LONGER_AMONG_FEWER = 1.5
"""All-reduces among fewer GPUs that take so many times as long as among more were not those of a server: vLLM's among
two GPUs of GB200 take 1.9 times as long as among four from 16 MB on, where among two of B200 they take 0.8 times."""
SQUARES_BYTES = 8
"""A token's sums of squares of queries and keys, which are reduced together (vLLM, `MiniMaxText01RMSNormTP`)."""
_HOPPER, _BLACKWELL = MappingProxyType({2: 64.0, 4: 2.0, 8: 0.5}), MappingProxyType({2: 64.0, 4: 32.0, 8: 1.0})
MOST_MIB: Mapping[str, Mapping[int, float]] = {
    **dict.fromkeys(("h100", "h200"), _HOPPER),
    **dict.fromkeys(("b200", "b300", "gb200", "gb300"), _BLACKWELL),
}
"""MiB of a step's activations up to which all-reduces are fused, by GPU and by the GPUs among which they go."""
FUSED = "fused all-reduce"
"""The part of a profile that says so; its name goes on with the GPUs among which they go."""
NOTHING = Curve((1.0,), (0.0,), 0.0)


def all_reduces(
    tables: Tables, lenders: Sequence[Tables], model: Model, gpu: Gpu, ranks: int
) -> tuple[Curve, list[PartSource]]:
    """Return microseconds of a step's all-reduces over tokens, by the first tables that have them."""
    try:
        (reduce, parts), lender = first(tables, lenders, lambda each: measured(each, model, ranks))
    except InputError:
        (reduce, parts), lender = first(tables, lenders, lambda each: wider(each, model, gpu, ranks))
    return reduce, marked(parts, tables, lender.software)


def with_norms(
    reduce: Curve, norm: Curve, fused: Tables, model: Model, gpu: Gpu, ranks: int
) -> tuple[Curve, Curve, list[PartSource]]:
    """Return a step's all-reduces and a layer's norms, where those of small steps are one kernel of other tables."""
    most = most_fused(fused.gpu, ranks, model.hidden * ACTIVATION_BYTES)
    if not most:
        return reduce, norm, []
    words = f"FlashInfer's, with the norm, up to {most:,} tokens: as under {fused.software}"
    quick, (source,) = all_reduces(fused, (), model, gpu, ranks)
    part = PartSource(f"{FUSED} among {ranks}", source.how, words)
    return up_to(most, quick, reduce), up_to(most, NOTHING, norm), [part]


def most_fused(gpu: str, ranks: int, token_bytes: int) -> int:
    """Return the tokens of a step up to which its all-reduces are fused; 0 where none are.

    `token_bytes` are the bytes of a token's activations.
    """
    return int(MOST_MIB.get(gpu, {}).get(ranks, 0.0) * 2**20) // token_bytes


def why_unfused(gpu: str, ranks: int) -> tuple[str, str] | None:
    """Return why no size of all-reduces among `ranks` GPUs is fused, and where some are; None where some are."""
    if gpu not in MOST_MIB:
        return f"no all-reduce that holds the norm was measured on {gpu}", f"measured on {', '.join(MOST_MIB)}"
    if ranks not in MOST_MIB[gpu]:
        return (
            f"vLLM fuses no all-reduces among {ranks} GPUs of {gpu}",
            f"it does among {', '.join(map(str, MOST_MIB[gpu]))}",
        )
    return None


def up_to(most: int, few: Curve, many: Curve) -> Curve:
    """Return a curve that costs what `few` does up to so many of something, and what `many` does beyond."""
    below = [*(count for count in few.counts if count < most), float(most)]
    beyond = [most + 1.0, *(count for count in many.counts if count > most + 1)]
    us = (*(few.at(count) for count in below), *(many.at(count) for count in beyond))
    return Curve((*below, *beyond), us, many.us_beyond)


def measured(tables: Tables, model: Model, ranks: int) -> tuple[Curve, list[PartSource]]:
    """A step's all-reduces over tokens: one behind each mixer and feed-forward."""
    if ranks not in tables.all_reduce:
        there = ", ".join(map(str, sorted(tables.all_reduce))) or "none"
        what = f"{tables.name} has no all-reduce among {ranks} GPUs, which tensor_parallel {ranks} needs"
        raise InputError(what, hint=f"measured: among {there}")
    sizes, us = tables.all_reduce[ranks]
    known = us
    for more, (others, theirs) in tables.all_reduce.items():
        if more > ranks:
            among_more = np.exp(np.interp(np.log(sizes), np.log(others), np.log(theirs)))
            us = np.where(us > LONGER_AMONG_FEWER * among_more, among_more, us)
    words = "" if us is known or np.array_equal(us, known) else "as among more where the source has them shorter"
    return _of_a_step(model, sizes, us), [PartSource(f"all-reduce among {ranks}", MEASURED, words)]


def wider(tables: Tables, model: Model, gpu: Gpu, ranks: int) -> tuple[Curve, list[PartSource]]:
    """As `measured`, among more GPUs than were measured: by what a ring moves, and the network behind the links."""
    most = max((count for count in tables.all_reduce if LEAST_MEASURED <= count < ranks), default=None)
    if most is None:
        return measured(tables, model, ranks)  # which refuses
    sizes, us = tables.all_reduce[most]
    inside = min(ranks, gpu.link_gpus)
    us = us * max(1.0, (1.0 - 1.0 / inside) / (1.0 - 1.0 / most))
    words = f"as among {most}, by the bytes of a ring"
    if ranks > inside:
        moved = 2.0 * (1.0 - inside / ranks) * sizes / inside
        us = us + 2.0 * NETWORK_LATENCY_US + moved / (NETWORK_GB_S * 1e3)
        words += f", and a network of {NETWORK_GB_S:.0f} GB/s a GPU beyond {inside}"
    return _of_a_step(model, sizes, us), [PartSource(f"all-reduce among {ranks}", EXTRAPOLATED, words)]


def _of_a_step(model: Model, sizes: Array, us: Array) -> Curve:
    """All-reduces of a step over tokens, from those of such sizes in bytes."""
    tokens, total = sizes / (model.hidden * ACTIVATION_BYTES), us * model.sublayers
    if model.qk_norm_whole:
        total = total + model.layers * np.interp(tokens * SQUARES_BYTES, sizes, us)
    return make_curve(tokens, total)
