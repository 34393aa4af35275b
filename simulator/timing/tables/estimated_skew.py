"""The cost of unequal contexts where none was measured: thread blocks, listed over the multiprocessors.

FlashAttention 2 gives a decoding sequence one block for each KV head (heads outermost), splits none once the blocks
fill four fifths of twice the multiprocessors (num_splits_heuristic in flash_api.cpp), and starts each block where one
has ended. While all places are taken, blocks share the memory's bandwidth; the last ones run with few others, at most
1 / `ALONE` times as fast. So a batch with a few long contexts takes longer than an equal one by

    integral of max(blocks running / places, ALONE) over the keys that each has read  -  the same of equal contexts

in units of the time for one key of a block among many. Beside a prompt no sequence is split, each query head has a
block of its own, and the extra is `LATE` of the difference of the last block's ends. The form and both numbers (the
mean of each card's own) were found on RTX 4090 and RTX PRO 6000, where batches of two lengths were measured
(LLMServingSim, vLLM 0.19); `docs.writers.accuracy.uneven` fits them and says how far one card is
predicted from the other.

FlashAttention 3 splits a sequence that has more than 1.1 times a multiprocessor's share of all keys
(prepare_varlen_num_blocks in hopper/flash_prepare_scheduler.cu): there nothing is added.
"""

import heapq
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from simulator.timing.profile.skew import Skew
from simulator.timing.profile.surface import Array, SurfaceAxis, flat

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
    late = float(_listed(lengths * apart, chip.places)[-1]) - -(-apart * size // chip.places) * equal
    return Ends(_listed(lengths * packed, chip.places), _equal(packed * size, chip.places, equal)), max(0.0, late)


def _listed(blocks: list[float], places: int) -> Array:
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
