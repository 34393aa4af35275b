"""A step's work on the device: lists, block tables and slots in one buffer.

All of it depends on the step alone, so it is made once and used by every layer. With room to spare (`Room`) the same
buffer takes the next step's work too, at the same addresses: what a captured CUDA graph needs.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np
import torch
from torch import Tensor

from gpu_backend.attention.tiling import Tiling
from gpu_backend.attention.worklist import ENTRY, MERGE, Ints, WorkList

COUNTS = 4  # integers that stand before a list: its entries, its merges, and two for the alignment of what follows


@dataclass(frozen=True, slots=True)
class Room:
    """Sizes of the buffers: the most entries of a list, merges, partial results, and so on."""

    decode_entries: int = 0
    decode_merges: int = 0
    decode_slots: int = 0
    prefill_entries: int = 0
    prefill_merges: int = 0
    prefill_slots: int = 0
    seqs: int = 0
    pages: int = 0
    tokens: int = 0

    def check(self, needed: Room) -> None:
        """Raise ValueError where `needed` does not fit."""
        for field in fields(self):
            have, want = getattr(self, field.name), getattr(needed, field.name)
            if want > have:
                raise ValueError(f"the step needs {want} {field.name}, and there is room for {have}")


@dataclass(frozen=True, slots=True)
class Launch:
    """One list's kernels: how the work is cut, where it stands, and over how many programs it goes.

    `merge_programs` 0: nothing was cut. `slot_rows` are the rows of a partial result.
    """

    tiling: Tiling
    entries: Tensor
    merges: Tensor
    counts: Tensor
    programs: int
    merge_programs: int
    partial: Tensor
    partial_log: Tensor
    slot_rows: int


@dataclass(frozen=True, slots=True)
class Prepared:
    """A step, ready for every layer. `buffer` owns what the others are views of."""

    room: Room
    buffer: Tensor
    tables: Tensor
    slots: Tensor
    launches: tuple[Launch, ...]


def needed(decode: WorkList, prefill: WorkList, tables: Ints, tokens: int) -> Room:
    """Return the exact room of a step."""
    return Room(
        *(len(decode.entries), len(decode.merges), decode.slots),
        *(len(prefill.entries), len(prefill.merges), prefill.slots),
        *(len(tables), tables.shape[1], tokens),
    )


def offsets(room: Room) -> list[int]:
    """Return where each part of a buffer begins, at multiples of 16 bytes, and the buffer's end."""
    sizes = (
        COUNTS,
        COUNTS,
        room.decode_entries * len(ENTRY),
        room.decode_merges * len(MERGE),
        room.prefill_entries * len(ENTRY),
        room.prefill_merges * len(MERGE),
        room.seqs * room.pages,
        room.tokens,
    )
    return [0, *np.cumsum([-(-size // 4) * 4 for size in sizes]).tolist()]


def fill(into: Prepared, decode: WorkList, prefill: WorkList, tables: Ints, slots: Ints) -> None:
    """Bring a step to the device. Raises ValueError where it does not fit.

    Where there is room to spare, only the pages that the step has are copied: a table for the longest context of all
    would be megabytes, and what earlier steps left behind no entry points to.
    """
    room, at = into.room, offsets(into.room)
    room.check(needed(decode, prefill, tables, len(slots)))
    packed = np.zeros(at[-1] - at[7] + at[6], np.int32)  # the lists, then the slots
    packed[at[0] : at[0] + 2] = len(decode.entries), len(decode.merges)
    packed[at[1] : at[1] + 2] = len(prefill.entries), len(prefill.merges)
    for start, part in zip(at[2:6], (decode.entries, decode.merges, prefill.entries, prefill.merges), strict=True):
        packed[start : start + part.size] = part.ravel()
    packed[at[6] : at[6] + len(slots)] = slots
    packed[at[6] + len(slots) :] = -1  # tokens that are not there are written nowhere
    host = _pinned(packed, into.buffer)
    into.buffer[: at[6]].copy_(host[: at[6]], non_blocking=True)
    into.buffer[at[7] :].copy_(host[at[6] :], non_blocking=True)
    if tables.size:
        table = _pinned(np.ascontiguousarray(tables), into.buffer)
        into.tables[: len(tables), : tables.shape[1]].copy_(table, non_blocking=True)


def _pinned(array: Ints, like: Tensor) -> Tensor:
    """Put an array where a GPU copies it from without waiting: pinned memory, kept until its copy is done."""
    host = torch.from_numpy(array)
    return host.pin_memory() if like.is_cuda else host
