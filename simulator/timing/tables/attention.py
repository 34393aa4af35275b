"""Attention of any heads from tables of some, with what unequal contexts and decodes beside prompts cost."""

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import log

import numpy as np

from simulator.errors import InputError
from simulator.timing.arithmetic import TILE
from simulator.timing.profile.kernels import Skew
from simulator.timing.profile.surface import Array, Physics, Sum, SurfaceAxis, flat, mesh
from simulator.timing.tables.table_schema import (
    EXTRAPOLATED,
    INTERPOLATED,
    MEASURED,
    Heads,
    HeadTable,
    fill,
    neighbours,
    steadiness,
)

# Attention of any heads from tables of some: what was measured, what lies between, what lies beyond.
#
# - Query heads that were not measured mix, by the logarithm, the corrections of two that were, with equal KV heads.
# - Decodes with KV heads that were not measured: a kernel works through pairs of a sequence and a KV head, so a
# batch of b with 16 KV heads is one of 2 b with 8, as many query heads to each.
# - Prompts hardly depend on KV heads: they take the nearest that were measured.
# - Of a window that was not measured, decodes cost as without one at a context of the window, and prompts their
# pairs within it, corrected as prompts of its length are. Where windows were measured (8,192 with heads of 128,
# 1,024 with heads of 256; H100, H200, B200), that is 2 to 6 % off for contexts beyond the window, prompts 1 to 4 %
# and 8 to 20 %; of a window of 128 up to 31 %. So `SHORTEST_WINDOW` is the least that is estimated.

SHORTEST_WINDOW = 1024


@dataclass(frozen=True, slots=True)
class Found:
    """Log microseconds over the axes of a table for the heads that were asked for; how they were come by, in words."""

    log_us: Array
    how: str
    words: str = ""


def decode_counts(seqs: Array, context: Array, kv_heads: float | Array, window: int) -> Mapping[str, Array]:
    """The work of decodes on one GPU: (sequence, KV head) pairs, keys that they read, the longest chain of keys."""
    seen = np.minimum(context, window) if window else context
    return {"items": seqs * kv_heads, "keys": seqs * kv_heads * seen, "chain": seen}


def prompt_counts(chunks: Array, each: Array, heads: float | Array, window: int) -> Mapping[str, Array]:
    """The work of fresh prompts on one GPU: tiles, visible (query, key) pairs, rows, the longest chain of keys."""
    return {
        "tiles": chunks * heads * np.ceil(each / TILE),
        "pairs": heads * chunks * visible_pairs(each, window),
        "tokens": heads * chunks * each,
        "chain": np.minimum(each, window + TILE) if window else each,
    }


def visible_pairs(each: Array, window: int) -> Array:
    """(query, key) pairs of a fresh prompt of `each` tokens, of which a query sees at most `window` (0: all)."""
    beyond = np.maximum(each - window, 0.0) if window else 0.0
    return np.asarray(0.5 * each * (each + 1) - 0.5 * beyond * (beyond + 1))


def find_table(tables: Sequence[HeadTable], head_dim: int, kv_dtype: str, window: int, of: str) -> HeadTable:
    """The table of these heads; of a window that was not measured, an estimate. InputError that says what there is."""
    widths = sorted({table.head_dim for table in tables})
    if head_dim not in widths:
        raise InputError(f"no {of} for heads of {head_dim}", hint=f"measured: heads of {_listed(widths)}")
    kinds = sorted({table.kv_dtype for table in tables if table.head_dim == head_dim})
    if kv_dtype not in kinds:
        raise InputError(f"no {of} for heads of {head_dim} with {kv_dtype} KV", hint=f"measured: {_listed(kinds)} KV")
    windows = {table.window: table for table in tables if (table.head_dim, table.kv_dtype) == (head_dim, kv_dtype)}
    if window not in windows and window >= SHORTEST_WINDOW and 0 in windows:
        return within_window(windows[0], window)
    if window not in windows:
        there = _listed(["none" if not size else f"{size}" for size in sorted(windows)])
        raise InputError(
            f"no {of} for heads of {head_dim} that see a window of {window} tokens", hint=f"measured windows: {there}"
        )
    return windows[window]


def within_window(table: HeadTable, window: int) -> HeadTable:
    """The table without a window, as it would be with one."""
    values = np.asarray(table.axes[1].values)
    seen, places = np.log(np.minimum(values, window)), np.log(values)
    within = replace(table, window=window, estimated=True)
    log_us = {}
    for heads in table.log_us:
        clipped = [np.interp(seen, places, line) for line in _correction(table, heads)]
        log_us[heads] = _log_physics(within, heads) + np.asarray(clipped)
    return replace(within, log_us=log_us)


def decode_us(table: HeadTable, heads: Heads) -> Found:
    """Decodes of these heads over the table's axes (seqs, context)."""
    measured = sorted({kv_heads for _, kv_heads in table.log_us})
    query, kv_heads = heads
    if kv_heads in measured:
        correction, how, words = _between(table, query, kv_heads)
    else:
        like = max((each for each in measured if each <= kv_heads), default=measured[0])
        correction, _, words = _between(table, query * like / kv_heads, like)
        correction = _shifted(table.axes[0], correction, kv_heads / like)
        how = EXTRAPOLATED
        words = f"as {kv_heads / like:g} times the batch with {like} KV heads" + (f", {words}" if words else "")
    return Found(_log_physics(table, heads) + correction, how, words)


def prompt_us(table: HeadTable, heads: Heads) -> Found:
    """Fresh prompts of these heads over the table's axes (chunks, each)."""
    query, kv_heads = heads
    measured = sorted({theirs for _, theirs in table.log_us})
    nearest = min(measured, key=lambda theirs: abs(log(theirs / kv_heads)))
    correction, how, words = _between(table, query, nearest)
    if nearest != kv_heads and heads not in table.log_us:
        how, words = EXTRAPOLATED, f"with {nearest} KV heads" + (f", {words}" if words else "")
    return Found(_log_physics(table, heads) + correction, how, words)


def decode_physics(table: HeadTable, kv_heads: int, whole: float = 1.0) -> Physics:
    """The physics of decodes in the features of a profile, of which a part (`whole`) sees whole contexts."""
    keys, chain = (dict(roof) for roof in table.physics.roofs)
    return Physics(
        table.physics.constant_us,
        (("seqs", _short(dict(table.physics.terms)["items"] * kv_heads)),),
        ((("keys", _short(keys["keys"] * kv_heads * whole)),), (("chain", _short(chain["chain"] * whole)),)),
        table.physics.p,
    )


def prompt_physics(table: HeadTable, heads: float, whole: float = 1.0) -> Physics:
    """The physics of prompts in the features of a profile, of which a part (`whole`) sees whole contexts."""
    work, chain = (dict(roof) for roof in table.physics.roofs)
    roof: Sum = (("pairs", _short(work["pairs"] * heads)), ("tokens", _short(work["tokens"] * heads)))
    return Physics(
        table.physics.constant_us,
        (("tiles", _short(dict(table.physics.terms)["tiles"] * heads)),),
        (roof, (("chain", _short(chain["chain"] * whole)),)),
        table.physics.p,
    )


def _between(table: HeadTable, query: float, kv_heads: int) -> tuple[Array, str, str]:
    """The correction for so many query heads beside measured KV heads, how it was come by, and in words."""
    known = sorted(heads for heads, theirs in table.log_us if theirs == kv_heads)
    if query in known:
        how, words = (INTERPOLATED, "as without a window, within it") if table.estimated else (MEASURED, "")
        return _correction(table, (int(query), kv_heads)), how, words
    low, high = neighbours(known, query)
    if low is None or high is None:
        edge = known[-1] if high is None else known[0]
        return _correction(table, (edge, kv_heads)), EXTRAPOLATED, f"as {edge} query heads"
    share = log(query / low) / log(high / low)
    below, above = _correction(table, (low, kv_heads)), _correction(table, (high, kv_heads))
    return (1.0 - share) * below + share * above, INTERPOLATED, f"between {low} and {high} query heads"


def _correction(table: HeadTable, heads: Heads) -> Array:
    """log(measured / physics) over the axes, its holes filled."""
    residual = table.log_us[heads] - _log_physics(table, heads)
    return fill(residual, steadiness(residual))


def _log_physics(table: HeadTable, heads: Heads) -> Array:
    """log(microseconds) over the axes by the physics, for these heads within the table's window."""
    first, second = mesh(table.axes)
    if table.axes[0].name == "seqs":
        counts = decode_counts(first, second, heads[1], table.window)
    else:
        counts = prompt_counts(first, second, heads[0], table.window)
    return np.asarray(np.log(table.physics.us(counts)))


def _shifted(axis: SurfaceAxis, correction: Array, factor: float) -> Array:
    """The correction at `factor` times the values of the first axis; beyond its end, that of the end."""
    known = np.log(np.asarray(axis.values))
    wanted = known + log(factor)
    return np.column_stack([np.interp(wanted, known, column) for column in correction.T])


def _short(value: float) -> float:
    return float(f"{value:.6g}")


def _listed(values: Sequence[object]) -> str:
    return ", ".join(str(value) for value in values)


# The cost of unequal contexts where none was measured: thread blocks, listed over the multiprocessors.
#
# FlashAttention 2 gives a decoding sequence one block for each KV head (heads outermost), splits none once the
# blocks fill four fifths of twice the multiprocessors (num_splits_heuristic in flash_api.cpp), and starts each
# block where one has ended. While all places are taken, blocks share the memory's bandwidth; the last ones run with
# few others, at most 1 / `ALONE` times as fast. So a batch with a few long contexts takes longer than an equal one
# by
#     integral of max(blocks running / places, ALONE) over the keys that each has read  -  the same of equal contexts
#
# in units of the time for one key of a block among many. Beside a prompt no sequence is split, each query head has
# a block of its own, and the extra is `LATE` of the difference of the last block's ends. The form and both numbers
# (the mean of each card's own) were found on RTX 4090 and RTX PRO 6000, where batches of two lengths were measured
# (LLMServingSim, vLLM 0.19); `docs.writers.accuracy.uneven` fits them and says how far one card is predicted from
# the other.
#
# FlashAttention 3 splits a sequence that has more than 1.1 times a multiprocessor's share of all keys
# (prepare_varlen_num_blocks in hopper/flash_prepare_scheduler.cu): there nothing is added.

ALONE = 0.42  # a block that runs alone takes this part of the time for a key that it takes among many
LATE = 0.62  # of what the last block's end is later by, what the kernel takes longer beside a prompt
FILLED = 0.8  # of twice the multiprocessors: from so many blocks on, no sequence is split
RATIO = 4  # long contexts to short ones in the batches listed: the extra per key hardly depends on it
WAVES = 2  # the places are listed at most so many times: with more, the two cards no longer agree on `ALONE`
SHARES = (0.0, 0.008, 0.016, 0.031, 0.0625, 0.125, 0.25, 0.5, 0.75, 1.0)
SIZES = (2, 4, 8, 16, 32, 64, 128, 256)


@dataclass(frozen=True, slots=True)
class Chip:
    """A GPU on which vLLM's attention is FlashAttention 2: its multiprocessors, and the blocks that each runs at once.

    A block takes 80 KB of shared memory for heads of 128; a multiprocessor has 164 KB on A100, 100 KB on the others.
    """

    sms: int
    per_sm: int = 1

    @property
    def places(self) -> int:
        """Blocks that run at once."""
        return self.sms * self.per_sm

    def least_whole(self, kv_heads: int) -> int:
        """Decodes from which on none is split."""
        return int(-(-FILLED * 2 * self.sms // kv_heads))


CHIPS: Mapping[str, Chip] = {
    "a100-80gb": Chip(108, 2), "a100-40gb": Chip(108, 2), "rtx-pro-6000": Chip(188), "rtx-5090": Chip(170),
    "rtx-4090": Chip(128), "l40s": Chip(142), "l4": Chip(58),
}  # fmt: skip
"""NVIDIA's Ampere, Ada and RTX Blackwell whitepapers."""


@dataclass(frozen=True, slots=True)
class Ends:
    """When places fall free for good, of a batch of two lengths and of an equal one; keys over (longest - mean)."""

    unequal: Array
    equal: Array


def estimated_skew(
    gpu: str, heads: int, kv_heads: int, key_us: float, beside: float, least: float = ALONE, late: float = LATE
) -> Skew | None:
    """The skew of a layer with these heads on one GPU; None where the GPU's attention is another.

    `key_us` is the time of each key in a large batch of decodes, `beside` the factor of decodes beside prompts.
    """
    chip = CHIPS.get(gpu)
    if chip is None or not kv_heads:
        return None
    whole = chip.least_whole(kv_heads)
    sizes = sorted({*SIZES, whole - 1, whole} - {0, 1})
    block_us = key_us * chip.places / kv_heads  # of one key of a block among many
    head_us = beside * key_us * chip.places / heads
    decode, mixed = np.zeros((len(sizes), len(SHARES))), np.zeros((len(sizes), len(SHARES)))
    for i, size in enumerate(sizes):
        longs = sorted({max(1, round(share * size)) for share in SHARES if share < 1.0} - {size})
        found = [two_lengths(size, some, kv_heads, heads, chip) for some in longs]
        shares = [some / size for some in longs]
        if size >= whole:
            decode[i] = _along(shares, [alone(ends, least) for ends, _ in found])
        mixed[i] = _along(shares, [later for _, later in found])
    return Skew(
        SurfaceAxis("seqs", tuple(map(float, sizes))),
        SurfaceAxis("share", SHARES),
        SurfaceAxis("context", (1.0,)),
        flat(block_us * decode),
        flat(late * head_us * mixed),
    )


def alone(ends: Ends, least: float) -> float:
    """The extra of decodes alone, per key of (longest - mean), in times of a block's key among many."""
    return max(0.0, _integral(ends.unequal, least) - _integral(ends.equal, least))


@lru_cache(maxsize=4096)
def two_lengths(size: int, longs: int, kv_heads: int, heads: int, chip: Chip) -> tuple[Ends, float]:
    """Ends of a batch with so many long contexts as decodes alone, and how much later the last is in a mixed step."""
    mean = 1.0 + (RATIO - 1.0) * longs / size
    lengths = [RATIO / (RATIO - mean)] * longs + [1.0 / (RATIO - mean)] * (size - longs)
    equal = mean / (RATIO - mean)
    enough = max(1, -(-WAVES * chip.places // size))
    packed, apart = min(kv_heads, enough), min(heads, enough)
    late = float(_ends_of_places(lengths * apart, chip.places)[-1]) - -(-apart * size // chip.places) * equal
    return Ends(_ends_of_places(lengths * packed, chip.places), _equal(packed * size, chip.places, equal)), max(
        0.0, late
    )


def _ends_of_places(blocks: list[float], places: int) -> Array:
    """When each place has ended its last block, each block put where one has ended first; ascending."""
    ends = blocks[:places]
    heapq.heapify(ends)
    for block in blocks[places:]:
        heapq.heapreplace(ends, ends[0] + block)
    return np.sort(np.asarray([*[0.0] * (places - len(ends)), *ends]))


def _equal(blocks: int, places: int, length: float) -> Array:
    """The time of so many equal blocks."""
    whole, more = divmod(blocks, places)
    return length * np.repeat([float(whole), whole + 1.0], [places - more, more])


def _integral(ends: Array, least: float) -> float:
    """Integrate max(blocks running / places, least) over the keys that each block has read."""
    running = np.arange(len(ends), 0, -1) / len(ends)
    return float((np.maximum(running, least) * np.diff(ends, prepend=0.0)).sum())


def _along(shares: list[float], extra: list[float]) -> Array:
    """At the shares of the table: straight lines between those of whole sequences, nothing at 1."""
    return np.asarray(np.interp(SHARES, [*shares, 1.0], [*extra, 0.0]))


# The cost of decodes in a step that computes prompts too, where both were measured apart only.
#
# One kernel computes such a step. FlashAttention 2 computes each query head on its own there, where a kernel for
# decodes alone packs the query heads of a KV head into one tile: the keys are read again for each, mostly from the
# L2 cache. So decodes take longer beside prompts, by a power of the query heads for each KV head. RTX 4090 and RTX
# PRO 6000, where both were measured together (LLMServingSim, vLLM 0.19), give the same power each by itself; it is
# fitted by `docs.writers.accuracy.beside`, which says how far one card is predicted from the other. FlashAttention
# 3 packs whatever the step holds (`should_pack_gqa` in hopper/heuristics.h): there the two add up. So they do with
# FlashInfer, which vLLM takes on B200 to GB300, and for an fp8 cache where FlashAttention 2 would have to read it:
# prompts and decodes are split, and each has a kernel of its own (vllm/v1/attention/backends/flashinfer.py).

PACKED = ("h100", "h200", "h20")  # GPUs on which vLLM computes attention with FlashAttention 3
APART = ("b200", "b300", "gb200", "gb300")  # GPUs on which it does so with FlashInfer
POWER = 0.48


def beside_factor(gpu: str, heads: int, kv_heads: int, power: float = POWER, kv: str = "bf16") -> float:
    """How many times as long decodes of these heads, less their launch, take beside prompts as alone."""
    return 1.0 if gpu in (*PACKED, *APART) or kv == "fp8" else float((heads / kv_heads) ** power)
