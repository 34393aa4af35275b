"""Attention over pages with torch's own operators: the default on a CPU, and the comparison for the kernel.

Pages are gathered whole. Decodes are sorted by context into buckets whose longest context is at most 1.25 times the
shortest, so that little is computed for padding; the query heads of a group are packed as rows over their one KV head.
Chunks are computed one by one, in tiles of queries that see no more keys than they may.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from gpu_backend.fp8 import put, taken, widened
from gpu_backend.work import UNSCALED, AttentionShape, Int32s, Int64s, KVScales, StepArrays

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
