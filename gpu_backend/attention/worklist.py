"""Work lists: the tile that each program computes, as rows of integers that a kernel reads. numpy only.

The rows of a sequence are its query heads of one KV head, token by token: with a group of `G` query heads a KV head,
row r is token r // G and head r % G of the group. Every KV head has the same tiles, so an *entry* stands for all of
them, and a work item is an entry and a KV head.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gpu_backend.attention.tiling import Tiling

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
