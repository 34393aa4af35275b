"""Paged attention on a GPU, for the layers of a model. CPU tensors work under TRITON_INTERPRET=1, for tests."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

import numpy as np
import torch
from torch import Tensor

from gpu_backend import kernels
from gpu_backend.attention.worklist import ENTRY, MERGE, Ints, Longs, Tiling, Tilings, WorkList, tilings, work_list
from gpu_backend.kernels import INTERPRETED
from gpu_backend.weights import E4M3
from gpu_backend.work import UNSCALED, KVScales, StepArrays

# A step's work on the device: lists, block tables and slots in one buffer.
#
# All of it depends on the step alone, so it is made once and used by every layer. With room to spare (`Room`) the
# same buffer takes the next step's work too, at the same addresses: what a captured CUDA graph needs.

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


# The attention of a model's layers.

MERGE_PROGRAMS_PER_SM = 8


@dataclass(frozen=True, slots=True)
class StepSequences:
    """A step's sequences, on the host. Tokens of the batch stand one sequence after another.

    `context`: keys of each, those of this step included; `query`: its tokens in this step, its last ones; `first`:
    leading keys that no token attends to (left padding); `tables`: its pages in order; `slots`: where each
    token's key and value go, block * block_size + offset, negative for nowhere.
    """

    context: Longs  # [seqs]
    query: Longs  # [seqs]
    first: Longs  # [seqs]
    tables: Ints  # [seqs, max_blocks]
    slots: Ints  # [tokens]


class PagedAttention:
    """Attention of one model's shape over pages of `block_size` tokens: `prepare` once a step, `attend` in each layer.

    `dtype` is that of queries, keys and values: float16, bfloat16 or float32 (slow, exact products); with `fp8_kv` the
    pages are e4m3 numbers, over scales that each call is given. Any GPU that Triton knows will do; the configurations
    are for Hopper, and `choice` overrides them. Raises ValueError for shapes that the kernels do not take, and for a
    device without Triton's kernels.
    """

    def __init__(
        self,
        heads: int,
        kv_heads: int,
        head_dim: int,
        block_size: int,
        device: torch.device | str,
        dtype: torch.dtype,
        *,
        scale: float | None = None,
        choice: Tilings | None = None,
        fp8_kv: bool = False,
    ) -> None:
        if heads % kv_heads:
            raise ValueError(f"{heads} query heads cannot share {kv_heads} KV heads evenly")
        self.device = torch.device(device)
        if self.device.type != "cuda" and not INTERPRETED:
            raise ValueError(
                f"the Triton kernels need a CUDA device, not {self.device}; TRITON_INTERPRET=1 emulates one"
            )
        self.kv_heads, self.group, self.head_dim, self.block_size = kv_heads, heads // kv_heads, head_dim, block_size
        self.dtype, self.kv_dtype = dtype, E4M3 if fp8_kv else dtype
        name = str(dtype).removeprefix("torch.")
        self.tilings = choice or tilings(head_dim, name, self.group, fp8_kv=fp8_kv)
        self.multiprocessors = _multiprocessors(self.device)
        self._scale_log2 = (head_dim**-0.5 if scale is None else scale) * math.log2(math.e)
        self._block_d = max(16, 1 << (head_dim - 1).bit_length())
        self._scratch = torch.empty(0, device=self.device)

    # ------------------------------------------------------------------------------------------------------ once a step

    def prepare(self, rows: StepArrays, into: Prepared | None = None) -> Prepared:
        """Bring the step's work to the device, in new buffers or `into` these (ValueError where they are too small)."""
        query = np.diff(rows.query_start).astype(np.int64)
        context, first = rows.context.astype(np.int64), rows.first.astype(np.int64)
        return self.prepare_step(StepSequences(context, query, first, rows.tables, rows.slot.astype(np.int32)), into)

    def prepare_step(self, step: StepSequences, into: Prepared | None = None) -> Prepared:
        """Like `prepare`, from plain arrays. Raises ValueError for lengths that contradict each other."""
        _check(step, self.block_size)
        decode, prefill = self._lists(step)
        if into is None:
            room = needed(decode, prefill, step.tables, len(step.slots))
            into = self._lay_out(room, fixed=False)
        fill(into, decode, prefill, step.tables, step.slots)
        return into

    def reserve(self, seqs: int, max_context: int, *, cache_tokens: int | None = None) -> Prepared:
        """Buffers for decode steps of up to `seqs` sequences of up to `max_context` keys, at fixed addresses.

        For CUDA graphs: capture `attend` with it, then `prepare(rows, into=...)` before each replay. The grid does not
        depend on the step. `cache_tokens`: keys that all sequences together can have, pages that they share counted
        for each; it bounds the memory.
        """
        chunk = self.tilings.decode.chunk
        entries = seqs * -(-max_context // chunk)
        if cache_tokens is not None:
            entries = min(entries, cache_tokens // chunk + seqs)
        pages = -(-max_context // self.block_size)
        room = Room(entries, seqs, entries if max_context > chunk else 0, seqs=seqs, pages=pages, tokens=seqs)
        prepared = self._lay_out(room, fixed=True)
        prepared.buffer.zero_()
        return prepared

    def _lists(self, step: StepSequences) -> tuple[WorkList, WorkList]:
        """The decode list and the prefill list: what fits into one small tile, and the rest."""
        small = step.query * self.group <= self.tilings.decode.block_m
        there = step.query > 0
        arrays = (step.context, step.query, step.first)
        decode = work_list(*arrays, np.flatnonzero(small & there), group=self.group, tiling=self.tilings.decode)
        prefill = work_list(*arrays, np.flatnonzero(~small), group=self.group, tiling=self.tilings.prefill)
        return decode, prefill

    def _lay_out(self, room: Room, *, fixed: bool) -> Prepared:
        """Buffers, their views and the grids; `fixed`: with scratch memory of its own and a grid of full size."""
        at = offsets(room)
        buffer = torch.empty(at[-1], dtype=torch.int32, device=self.device)
        lists = (
            (self.tilings.decode, room.decode_entries, room.decode_merges, room.decode_slots),
            (self.tilings.prefill, room.prefill_entries, room.prefill_merges, room.prefill_slots),
        )
        launches = []
        for index, (tiling, entries, merges, slots) in enumerate(lists):
            if not entries:
                continue
            begin, end = at[2 + 2 * index : 4 + 2 * index]
            rows = self.group if fixed else tiling.block_m
            partial, partial_log = self._partials(slots * self.kv_heads, rows, own=fixed)
            items, persistent = entries * self.kv_heads, tiling.programs_per_sm * self.multiprocessors
            merge_most = self.multiprocessors * MERGE_PROGRAMS_PER_SM
            launches.append(
                Launch(
                    tiling=tiling,
                    entries=buffer[begin : begin + entries * len(ENTRY)],
                    merges=buffer[end : end + max(1, merges) * len(MERGE)],
                    counts=buffer[index * COUNTS : (index + 1) * COUNTS],
                    programs=min(items, persistent) if persistent else items,
                    merge_programs=min(merges * self.kv_heads, merge_most) if slots else 0,
                    partial=partial,
                    partial_log=partial_log,
                    slot_rows=rows,
                )
            )
        tables = buffer[at[6] : at[6] + room.seqs * room.pages].view(room.seqs, room.pages)
        return Prepared(room, buffer, tables, buffer[at[7] : at[7] + room.tokens], tuple(launches))

    def _partials(self, slots: int, rows: int, *, own: bool) -> tuple[Tensor, Tensor]:
        """Scratch memory for partial results. Steps share it: their kernels run one after another on one stream."""
        logs = slots * rows
        size, scratch = logs * (self.head_dim + 1), self._scratch
        if own or scratch.numel() < size:
            scratch = torch.empty(size, device=self.device)
        if not own:
            self._scratch = scratch
        return scratch[logs:], scratch[:logs]

    # ------------------------------------------------------------------------------------------------------ every layer

    def attend(
        self, query: Tensor, key: Tensor, value: Tensor, kv: Tensor, prepared: Prepared, *, scales: KVScales = UNSCALED
    ) -> Tensor:
        """Write this step's keys and values to their slots, then attend.

        `query` [tokens, heads, head_dim], `key` and `value` [tokens, kv_heads, head_dim], `kv` [blocks, 2, kv_heads,
        block_size, head_dim], all of `dtype` but for pages in fp8. Returns what `look` does.
        """
        write_kv(key, value, kv, prepared.slots[: len(key)], scales)
        return self.look(query, kv, prepared, scales=scales)

    def look(
        self, query: Tensor, kv: Tensor, prepared: Prepared, out: Tensor | None = None, *, scales: KVScales = UNSCALED
    ) -> Tensor:
        """Attention [tokens, heads, head_dim] of `query` to the pages; 0 for a token that has no key."""
        self._check_tensors(query, kv)
        out = torch.empty_like(query) if out is None else out
        shape = {"kv_heads": self.kv_heads, "group": self.group, "head_dim": self.head_dim, "block_d": self._block_d}
        for launch in prepared.launches:
            tiling = launch.tiling
            kernels.attend[(launch.programs,)](
                *(query, kv, prepared.tables, launch.entries, launch.counts, out, launch.partial, launch.partial_log),
                *(self._scale_log2 * scales.key, scales.value),
                *(query.stride(0), out.stride(0), kv.stride(0), prepared.tables.stride(0), launch.slot_rows),
                **shape,
                page=self.block_size,
                block_m=tiling.block_m,
                block_n=tiling.block_n,
                upcast=INTERPRETED,
                precision="ieee",
                **variant(tiling, self.block_size),
                num_warps=tiling.num_warps,
                num_stages=tiling.num_stages,
                maxnreg=tiling.max_registers,
                enable_fp_fusion=True,  # what Triton does by default changes with 3.10
            )
            if launch.merge_programs:
                block_rows, block_parts = merge_blocks(tiling)
                kernels.merge[(launch.merge_programs, -(-launch.slot_rows // block_rows))](
                    *(launch.partial, launch.partial_log, launch.merges, launch.counts, out),
                    *(out.stride(0), launch.slot_rows),
                    **shape,
                    block_rows=block_rows,
                    block_parts=block_parts,
                    num_warps=4,
                )
        return out

    def _check_tensors(self, query: Tensor, kv: Tensor) -> None:
        heads = self.kv_heads * self.group
        if query.shape[1:] != (heads, self.head_dim) or query.stride()[1:] != (self.head_dim, 1):
            raise ValueError(f"query must be [tokens, {heads}, {self.head_dim}], heads contiguous, not {query.shape}")
        page = (2, self.kv_heads, self.block_size, self.head_dim)
        if kv.shape[1:] != page or not kv[0].is_contiguous():
            raise ValueError(
                f"the cache must be [blocks, {', '.join(map(str, page))}], blocks contiguous, not {kv.shape}"
            )
        if query.dtype != self.dtype or kv.dtype != self.kv_dtype:
            must = f"both must be {self.dtype}" if self.kv_dtype == self.dtype else f"{self.dtype}, {self.kv_dtype}"
            raise ValueError(f"query is {query.dtype} and the cache {kv.dtype}; {must}")


def variant(tiling: Tiling, page: int) -> dict[str, object]:
    """The kernel's constants that choose among its variants. An item's keys may begin in the middle of a page."""
    pages = tiling.chunk // page + 1
    return {
        "table_once": tiling.table_once,
        "evict": "evict_first" if tiling.evict_first else "",
        "entries_known": 1 << (pages - 1).bit_length() if tiling.table_once else 16,
    }


def merge_blocks(tiling: Tiling) -> tuple[int, int]:
    """Rows and parts that one program merges at a time: many parts of one row in decode, the reverse in prefill."""
    return (1, 16) if tiling.programs_per_sm else (16, 2)


def write_kv(key: Tensor, value: Tensor, kv_cache: Tensor, slots: Tensor, scales: KVScales = UNSCALED) -> None:
    """Write `key` and `value` [tokens, kv_heads, head_dim] to `slots` int32 or int64 [tokens] of the cache.

    In a cache in fp8 they are divided by `scales` first. A slot is block * block_size + offset; a negative one is
    skipped. Raises ValueError for shapes that do not fit.
    """
    _, _, kv_heads, block_size, head_dim = kv_cache.shape
    for name, tensor in (("key", key), ("value", value)):
        if tensor.shape != (len(slots), kv_heads, head_dim) or tensor.stride()[1:] != (head_dim, 1):
            raise ValueError(f"{name} must be [{len(slots)}, {kv_heads}, {head_dim}], heads contiguous: {tensor.shape}")
    if not len(slots):
        return
    kernels.write[(len(slots),)](
        *(key, value, kv_cache, slots, 1.0 / scales.key, 1.0 / scales.value),
        *(key.stride(0), value.stride(0), kv_cache.stride(0)),
        kv_heads=kv_heads,
        head_dim=head_dim,
        block_h=1 << (kv_heads - 1).bit_length(),
        block_d=1 << (head_dim - 1).bit_length(),
        page=block_size,
        emulated=INTERPRETED,
        num_warps=4,
    )


def _check(step: StepSequences, block_size: int) -> None:
    """Raise ValueError for lengths that contradict each other: a kernel would read what it does not own."""
    if not len(step.context) == len(step.query) == len(step.first) == len(step.tables):
        raise ValueError("context_lens, query_lens, first and block_tables must have one row a sequence")
    if (step.query < 0).any() or (step.context < step.query).any():
        raise ValueError("context_lens counts this step's tokens too: it cannot be less than query_lens")
    if (step.first < 0).any():
        raise ValueError("first cannot be negative")
    pages = -(-int(step.context.max(initial=0)) // block_size)
    if pages > step.tables.shape[1]:
        raise ValueError(f"a context needs {pages} blocks of {block_size}, and block_tables has {step.tables.shape[1]}")


def _multiprocessors(device: torch.device) -> int:
    """Count the device's multiprocessors; the interpreter, which runs programs one after another, counts as 2."""
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 2
