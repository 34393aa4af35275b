"""Attention over pages with torch's operators: on any device, and by its dense kernels over gathered prefixes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from gpu_backend.weights import put, stored, taken, widened
from gpu_backend.work import UNSCALED, AttentionImpl, AttentionShape, Int32s, Int64s, KVScales, StepArrays

# Attention over pages with torch's own operators: the default on a CPU, and the comparison for the kernel.
#
# Pages are gathered whole. Decodes are sorted by context into buckets whose longest context is at most 1.25 times
# the shortest, so that little is computed for padding; the query heads of a group are packed as rows over their one
# KV head. Chunks are computed one by one, in tiles of queries that see no more keys than they may.

_BUCKET = 1.25  # longest context over shortest in a bucket of decodes
_TILE = 128  # queries of a chunk that are computed together


@dataclass(frozen=True, slots=True)
class _Bucket:
    """Decodes of similar context: their query rows, the page heads to gather, what to add to the scores."""

    rows: Tensor  # [B]
    pages: Tensor  # [B * 2 * kv_heads * pages]
    mask: Tensor  # [B, 1, 1, pages * block_size]


@dataclass(frozen=True, slots=True)
class _Tile:
    start: int  # among the chunk's queries
    stop: int
    keys: int
    mask: Tensor  # [group * (stop - start), keys]


@dataclass(frozen=True, slots=True)
class _Chunk:
    start: int  # among the step's tokens
    stop: int
    pages: Tensor
    tiles: Sequence[_Tile]


@dataclass(frozen=True, slots=True)
class Prepared:
    """A step's slots, gathers and masks."""

    page: Tensor  # [T], of each token's slot
    offset: Tensor  # [T], in that page
    buckets: Sequence[_Bucket]
    chunks: Sequence[_Chunk]


class TorchAttention:
    """`gpu_backend.work.AttentionImpl` on any device."""

    def __init__(self, shape: AttentionShape, device: str, dtype: torch.dtype) -> None:
        self._kv_heads, self._group = shape.kv_heads, shape.heads // shape.kv_heads
        self._head_dim, self._size = shape.head_dim, shape.block_size
        self._device, self._dtype = device, dtype

    def prepare(self, rows: StepArrays) -> Prepared:
        buckets = [self._bucket(rows, members) for members in length_buckets(rows.context[: rows.decodes])]
        chunks = [self._chunk(rows, index) for index in range(rows.decodes, len(rows))]
        page, offset = self._ids(rows.slot // self._size), self._ids(rows.slot % self._size)
        return Prepared(page, offset, buckets, chunks)

    def attend(
        self, query: Tensor, key: Tensor, value: Tensor, kv: Tensor, prepared: Prepared, *, scales: KVScales = UNSCALED
    ) -> Tensor:
        put(kv, prepared.page, prepared.offset, key, value, scales)
        out = torch.empty_like(query)
        pages = kv.reshape(-1, self._size * self._head_dim)  # a row is one head of one page
        for bucket in prepared.buckets:
            out.index_copy_(0, bucket.rows, self._decode(query, pages, bucket, scales))
        for chunk in prepared.chunks:
            self._prefill(query[chunk.start : chunk.stop], pages, chunk, out[chunk.start : chunk.stop], scales)
        return out

    def _decode(self, query: Tensor, pages: Tensor, bucket: _Bucket, scales: KVScales) -> Tensor:
        count = len(bucket.rows)
        both = taken(pages, bucket.pages).view(2, count, self._kv_heads, -1, self._head_dim)
        packed = query.index_select(0, bucket.rows).view(count, self._kv_heads, self._group, self._head_dim)
        keys, values = self._widened(both, scales)
        out = scaled_dot_product_attention(packed, keys, values, attn_mask=bucket.mask)
        return out.reshape(count, self._kv_heads * self._group, self._head_dim)

    def _prefill(self, query: Tensor, pages: Tensor, chunk: _Chunk, out: Tensor, scales: KVScales) -> None:
        both = taken(pages, chunk.pages).view(2, 1, self._kv_heads, -1, self._head_dim)
        every_key, every_value = self._widened(both, scales)
        for tile in chunk.tiles:
            count = tile.stop - tile.start
            packed = query[tile.start : tile.stop].view(count, self._kv_heads, self._group, self._head_dim)
            packed = packed.permute(1, 2, 0, 3).reshape(1, self._kv_heads, self._group * count, self._head_dim)
            keys, values = every_key[:, :, : tile.keys], every_value[:, :, : tile.keys]
            got = scaled_dot_product_attention(packed, keys, values, attn_mask=tile.mask)
            got = got.view(self._kv_heads, self._group, count, self._head_dim).permute(2, 0, 1, 3)
            out[tile.start : tile.stop] = got.reshape(count, self._kv_heads * self._group, self._head_dim)

    def _widened(self, both: Tensor, scales: KVScales) -> tuple[Tensor, Tensor]:
        return widened(both[0], scales.key, self._dtype), widened(both[1], scales.value, self._dtype)

    # Preparing

    def _bucket(self, rows: StepArrays, members: Int64s) -> _Bucket:
        context, first = rows.context[members], rows.first[members]
        pages = -(-int(context.max()) // self._size)
        place = np.arange(pages * self._size)
        seen = (place < context[:, None]) & (place >= first[:, None])
        page_heads, mask = self._page_heads(rows.tables[members, :pages]), self._mask(seen)[:, None, None, :]
        return _Bucket(self._ids(members), page_heads, mask)

    def _chunk(self, rows: StepArrays, index: int) -> _Chunk:
        start, stop = int(rows.query_start[index]), int(rows.query_start[index + 1])
        context, first = int(rows.context[index]), int(rows.first[index])
        pages = -(-context // self._size)
        before = context - (stop - start)
        tiles = []
        for begin in range(0, stop - start, _TILE):
            end = min(begin + _TILE, stop - start)
            keys = before + end
            query_place = np.arange(before + begin, before + end)[:, None]
            key_place = np.arange(keys)
            seen = (key_place <= query_place) & (key_place >= np.minimum(first, query_place))
            tiles.append(_Tile(begin, end, keys, self._mask(np.tile(seen, (self._group, 1)))))
        return _Chunk(start, stop, self._page_heads(rows.tables[index : index + 1, :pages]), tiles)

    def _page_heads(self, tables: Int32s) -> Tensor:
        """Rows of the pool, one a head of a page, in the order [keys and values, sequence, head, page]."""
        both, heads = np.arange(2)[:, None, None, None], np.arange(self._kv_heads)[None, None, :, None]
        rows = (tables[None, :, None, :].astype(np.int64) * 2 + both) * self._kv_heads + heads
        return self._ids(rows.reshape(-1))

    def _ids(self, ids: Int64s) -> Tensor:
        return torch.from_numpy(ids).to(self._device)

    def _mask(self, seen: NDArray[np.bool_]) -> Tensor:
        """0 where a key is seen, -inf elsewhere."""
        hidden = torch.from_numpy(~seen).to(self._device)
        return torch.zeros(seen.shape, dtype=self._dtype, device=self._device).masked_fill_(hidden, float("-inf"))


def length_buckets(context: Int32s) -> list[Int64s]:
    """Indices of decodes by ascending context, cut where the longest would be more than 1.25 times the shortest."""
    order = np.argsort(context, kind="stable")
    found: list[Int64s] = []
    start = 0
    for place in range(1, len(order) + 1):
        if place == len(order) or context[order[place]] > _BUCKET * context[order[start]]:
            found.append(order[start:place].astype(np.int64))
            start = place
    return found


# Prompt chunks by a dense attention kernel of torch's: a cached prefix is gathered, the new tokens need not be.
#
# The chunk attends to its prefix (every key seen) and to itself (causally) in two calls, whose outputs are merged
# by the logarithms of their sums of exponents. Gathering costs one pass over the prefix, about 1 % of a chunk of
# 2,000 tokens behind 8,000; the dense kernels (FlashAttention, or cuDNN's) reach a larger share of the matrix rate
# than one that follows a table of 16-token pages. Decodes go to the paged attention, as do chunks with left
# padding.

Kernel = Callable[[Tensor, Tensor, Tensor, bool], tuple[Tensor, Tensor]]
"""Queries [1, heads, n, head_dim], keys and values [1, kv_heads, m, head_dim], and whether causal (then n = m): the
output, and the log of the sums of exponents [1, heads, n]."""


def flash_kernel(query: Tensor, key: Tensor, value: Tensor, causal: bool) -> tuple[Tensor, Tensor]:
    """torch's FlashAttention, for CUDA or for CPUs."""
    key, value = _widened(query, key), _widened(query, value)
    if query.is_cuda:
        found = torch.ops.aten._scaled_dot_product_flash_attention(query, key, value, 0.0, causal, False)
    else:
        found = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(query, key, value, 0.0, causal)
    return found[0], found[1]


def cudnn_kernel(query: Tensor, key: Tensor, value: Tensor, causal: bool) -> tuple[Tensor, Tensor]:
    """cuDNN's attention as torch carries it."""
    key, value = _widened(query, key), _widened(query, value)
    found = torch.ops.aten._scaled_dot_product_cudnn_attention(query, key, value, None, True, 0.0, causal, False)
    return found[0], found[1].view(query.shape[:3])


def _widened(query: Tensor, shared: Tensor) -> Tensor:
    """Repeat each KV head for its query heads: not every direct call takes groups."""
    group = query.shape[1] // shared.shape[1]
    if group == 1:
        return shared
    _, heads, keys, width = shared.shape
    return shared.unsqueeze(2).expand(1, heads, group, keys, width).reshape(1, heads * group, keys, width)


@dataclass(frozen=True, slots=True)
class _DenseChunk:
    start: int  # among the step's tokens
    stop: int
    before: int  # keys of its prefix
    pages: Tensor  # [P] of the prefix


@dataclass(frozen=True, slots=True)
class PreparedChunks:
    """A step: what the paged attention does of it (decodes; or all, where there is left padding), and the chunks."""

    paged: Any
    paged_tokens: int
    page: Tensor  # [T], of each chunk token's slot
    offset: Tensor  # [T], in that page
    chunks: Sequence[_DenseChunk]


class GatheredAttention:
    """`gpu_backend.work.AttentionImpl` with a dense kernel for prompt chunks, and `paged` for all else."""

    def __init__(self, shape: AttentionShape, device: str, paged: AttentionImpl, kernel: Kernel = flash_kernel) -> None:
        self._shape, self._device, self._kernel = shape, device, kernel
        self._paged = paged

    def prepare(self, rows: StepArrays) -> PreparedChunks:
        size, decodes = self._shape.block_size, rows.decodes
        if rows.first[decodes:].any() or decodes == len(rows):
            none = self._ids(np.empty(0, np.int64))
            return PreparedChunks(self._paged.prepare(rows), len(rows.token), none, none, ())
        chunks = []
        for index in range(decodes, len(rows)):
            start, stop = int(rows.query_start[index]), int(rows.query_start[index + 1])
            before = int(rows.context[index]) - (stop - start)
            pages = rows.tables[index, : -(-before // size)].astype(np.int64)
            chunks.append(_DenseChunk(start, stop, before, self._ids(pages)))
        slot = rows.slot[decodes:]
        paged = self._paged.prepare(rows.first_rows(decodes)) if decodes else None
        return PreparedChunks(paged, decodes, self._ids(slot // size), self._ids(slot % size), chunks)

    def attend(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        kv: Tensor,
        prepared: PreparedChunks,
        *,
        scales: KVScales = UNSCALED,
    ) -> Tensor:
        count = prepared.paged_tokens
        if not prepared.chunks:
            answer: Tensor = self._paged.attend(query, key, value, kv, prepared.paged, scales=scales)
            return answer
        # All slots first: a request may share a page that is filled in the same step.
        put(kv, prepared.page, prepared.offset, key[count:], value[count:], scales)
        out = torch.empty_like(query)
        if count:
            mine = query[:count], key[:count], value[:count]
            out[:count] = self._paged.attend(*mine, kv, prepared.paged, scales=scales)
        for chunk in prepared.chunks:
            own = slice(chunk.start, chunk.stop)
            out[own] = self._chunk(query[own], key[own], value[own], kv, chunk, scales)
        return out

    def _chunk(
        self, query: Tensor, key: Tensor, value: Tensor, kv: Tensor, chunk: _DenseChunk, scales: KVScales
    ) -> Tensor:
        if kv.dtype != key.dtype:  # a chunk sees its own keys as later ones will
            key = widened(stored(key, scales.key, kv.dtype), scales.key, key.dtype)
            value = widened(stored(value, scales.value, kv.dtype), scales.value, value.dtype)
        asked, keys, values = (tensor.transpose(0, 1).unsqueeze(0) for tensor in (query, key, value))
        out, log = self._kernel(asked, keys, values, True)
        if chunk.before:
            both = taken(kv, chunk.pages).permute(1, 2, 0, 3, 4)  # [2, kv_heads, pages, page, head_dim]
            both = both.reshape(2, 1, self._shape.kv_heads, -1, self._shape.head_dim)[:, :, :, : chunk.before]
            before = widened(both[0], scales.key, query.dtype), widened(both[1], scales.value, query.dtype)
            behind, behind_log = self._kernel(asked, *before, False)
            out = merged(out, log, behind, behind_log)
        return out.squeeze(0).transpose(0, 1)

    def _ids(self, ids: np.ndarray[tuple[int, ...], np.dtype[np.int64]]) -> Tensor:
        return torch.from_numpy(ids).to(self._device)


def merged(one: Tensor, one_log: Tensor, other: Tensor, other_log: Tensor) -> Tensor:
    """Merge attention to two sets of keys: outputs [..., n, head_dim], logs of the sums [..., n]."""
    share = torch.sigmoid(one_log.float() - other_log.float()).unsqueeze(-1)
    return (one.float() * share + other.float() * (1.0 - share)).to(one.dtype)
