"""Work lists: the tile that each program computes, as rows of integers that a kernel reads. numpy only.

The rows of a sequence are its query heads of one KV head, token by token: with a group of `G` query heads a KV head,
row r is token r // G and head r % G of the group. Every KV head has the same tiles, so an *entry* stands for all of
them, and a work item is an entry and a KV head.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

# The sizes of the kernels' tiles: one table, for every head size and value type.
#
# The numbers are starting points that compile well for sm_90 (no spills, wgmma in prefill);
# `tools.kernel_bench.speed --sweep` measures the neighbours of each on the GPU at hand. See
# tools/kernel_bench/NOTES.md for what each was weighed against.

HALF = ("float16", "bfloat16")  # value types that the tensor cores multiply as they are
DTYPES = (*HALF, "float32")

MIN_ROWS = 16  # rows of the smallest tile that a tensor core takes
REGISTERS = 65536  # registers of a multiprocessor, on every NVIDIA GPU of the last ten years


@dataclass(frozen=True, slots=True)
class Tiling:
    """One configuration of the attention kernel.

    A tile is `block_m` rows, a row being one query head of one token. A work item is a tile and at most `chunk` keys,
    read `block_n` at a time. `programs_per_sm` > 0: a persistent grid of so many programs on each multiprocessor;
    0: a program for each work item, which the hardware hands out in order. `table_once`: the page table's entries of an
    item are loaded before its keys, so that no load of keys waits for one of them. `evict_first`: keys and values are
    marked as read once, and do not push others out of the L2 cache.
    """

    block_m: int
    block_n: int
    chunk: int
    num_warps: int
    num_stages: int
    programs_per_sm: int = 0
    table_once: bool = False
    evict_first: bool = False

    def __post_init__(self) -> None:
        if self.chunk % self.block_n:
            raise ValueError(f"chunk {self.chunk} is not a multiple of block_n {self.block_n}")

    @property
    def max_registers(self) -> int | None:
        """Registers a thread that the programs on a multiprocessor leave each other; None: the most there can be.

        The assembler is told. Left to itself it aims lower in some shapes, and spills a few.
        """
        share = REGISTERS // (32 * self.num_warps * max(1, self.programs_per_sm)) // 8 * 8
        return share if share < 255 else None


@dataclass(frozen=True, slots=True)
class Tilings:
    """The two configurations that a step needs. What fits into one decode tile is decode, whatever its caller calls
    it: the last few tokens of a prompt behind a long prefix are cut by their keys like any decode."""

    decode: Tiling
    prefill: Tiling


def tilings(head_dim: int, dtype: str, group: int = 1, *, fp8_kv: bool = False) -> Tilings:
    """The configurations for heads of `head_dim`, values of `dtype` and `group` query heads a KV head.

    With `fp8_kv` pages are widened in registers: a program fewer on a multiprocessor leaves it enough of them.

    Raises ValueError for a dtype other than float16, bfloat16 and float32, and for heads wider than 256.
    """
    if dtype not in DTYPES:
        raise ValueError(f"attention kernels work on {', '.join(DTYPES)}, not on {dtype}")
    if not 1 <= head_dim <= 256:
        raise ValueError(f"attention kernels work on heads of 1 to 256, not {head_dim}")
    rows = max(MIN_ROWS, 1 << (group - 1).bit_length())
    if dtype == "float32":  # exact products on the ordinary cores: for comparing, not for speed
        return Tilings(Tiling(rows, 16, 512, 4, 1, 2), Tiling(16, 16, 8192, 4, 1))
    if rows > MIN_ROWS:
        return Tilings(Tiling(rows, 32, 512, 4, 5, 2), _prefill(head_dim))
    if head_dim > 128:
        return Tilings(Tiling(rows, 16, 512, 4, 7, 3), _prefill(head_dim))
    if head_dim > 64:
        return Tilings(Tiling(rows, 32, 512, 4, 7, 3 if fp8_kv else 4), _prefill(head_dim))
    return Tilings(Tiling(rows, 64, 512, 4, 7, 4), _prefill(head_dim))


def _prefill(head_dim: int) -> Tiling:
    if head_dim > 128:  # 128 rows of 256 fill every register, and spill under Triton 3.6 and 3.7
        return Tiling(64, 16, 8192, 8, 5)
    return Tiling(128, 64, 8192, 8, 5)


# The work lists.

Ints = npt.NDArray[np.int32]
Longs = npt.NDArray[np.int64]

ENTRY = ("seq", "row", "rows", "shift", "begin", "full", "end", "slot")
"""Columns of an entry: row of the block table; first row of the tile, counted over the whole batch; rows in it; what
to add to a token's place in the batch for its position in the sequence; the keys [begin, end) it reads, whole tiles of
them up to `full` that no row needs a mask for; and its partial result, -1 to write the output itself."""
MERGE = ("row", "rows", "slot", "parts")
"""Columns of a merge: a tile that was cut into `parts` entries, whose partial results begin at `slot`."""


@dataclass(frozen=True, slots=True)
class WorkList:
    """Entries, heaviest first; merges; and how many partial results (tiles by KV head) the entries write."""

    entries: Ints  # [n, 8]
    merges: Ints  # [m, 4]
    slots: int


def work_list(context: Longs, query: Longs, first: Longs, which: Longs, *, group: int, tiling: Tiling) -> WorkList:
    """The work of the sequences `which` (indices), cut into tiles of `block_m` rows and chunks of `chunk` keys.

    `context`: keys of every sequence of the batch, those of this step's tokens included. `query`: its tokens in this
    step, which are its last. `first`: keys that it skips at its beginning. A tile's chunks begin at `first`, so a
    sequence is cut by its own length alone, not by the rest of the batch. A token before `first` has no key at all.
    """
    if not which.size:
        return WorkList(np.empty((0, len(ENTRY)), np.int32), np.empty((0, len(MERGE)), np.int32), 0)
    starts = np.concatenate(([0], np.cumsum(query)))[:-1]
    sequence_rows = query[which] * group
    tiles = -(-sequence_rows // tiling.block_m)
    seq = np.repeat(which, tiles)
    offset = _counts_up(tiles) * tiling.block_m
    rows = np.minimum(tiling.block_m, np.repeat(sequence_rows, tiles) - offset)
    before = context[seq] - query[seq]
    end = before + (offset + rows - 1) // group + 1
    parts = np.maximum(1, -(-(end - first[seq]) // tiling.chunk))
    cut = parts > 1
    slots = np.where(cut, parts, 0)
    slot = np.cumsum(slots) - slots

    tile = np.repeat(np.arange(len(seq)), parts)
    part = _counts_up(parts)
    begin = first[seq][tile] + part * tiling.chunk
    keys_end = np.maximum(begin, np.minimum(begin + tiling.chunk, end[tile]))
    seen_by_all = np.minimum(keys_end, (before + offset // group)[tile] + 1)
    full = begin + np.maximum(0, seen_by_all - begin) // tiling.block_n * tiling.block_n
    columns = {
        "seq": seq[tile],
        "row": (starts[seq] * group + offset)[tile],
        "rows": rows[tile],
        "shift": (before - starts[seq])[tile],
        "begin": begin,
        "full": full,
        "end": keys_end,
        "slot": np.where(cut[tile], slot[tile] + part, -1),
    }
    order = np.argsort(begin - keys_end, kind="stable")
    entries = np.stack([columns[name] for name in ENTRY], axis=1)[order].astype(np.int32)
    merges = np.stack([starts[seq] * group + offset, rows, slot, parts], axis=1)[cut].astype(np.int32)
    return WorkList(entries, merges, int(slots.sum()))


def _counts_up(counts: Longs) -> Longs:
    """0, 1, ..., n - 1 for each n of `counts`, one after another."""
    starts = np.cumsum(counts) - counts
    return np.arange(int(counts.sum())) - np.repeat(starts, counts)
