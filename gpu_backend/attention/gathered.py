"""Prompt chunks by a dense attention kernel of torch's: a cached prefix is gathered, the new tokens need not be.

The chunk attends to its prefix (every key seen) and to itself (causally) in two calls, whose outputs are merged by the
logarithms of their sums of exponents. Gathering costs one pass over the prefix, about 1 % of a chunk of 2,000 tokens
behind 8,000; the dense kernels (FlashAttention, or cuDNN's) reach a larger share of the matrix rate than one that
follows a table of 16-token pages. Decodes go to the paged attention, as do chunks with left padding.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gpu_backend.fp8 import put, stored, taken, widened
from gpu_backend.work import UNSCALED, AttentionImpl, AttentionShape, KVScales, StepArrays

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
class _Chunk:
    start: int  # among the step's tokens
    stop: int
    before: int  # keys of its prefix
    pages: Tensor  # [P] of the prefix


@dataclass(frozen=True, slots=True)
class Prepared:
    """A step: what the paged attention does of it (decodes; or all, where there is left padding), and the chunks."""

    paged: Any
    paged_tokens: int
    page: Tensor  # [T], of each chunk token's slot
    offset: Tensor  # [T], in that page
    chunks: Sequence[_Chunk]


class GatheredAttention:
    """`gpu_backend.work.AttentionImpl` with a dense kernel for prompt chunks, and `paged` for all else."""

    def __init__(self, shape: AttentionShape, device: str, paged: AttentionImpl, kernel: Kernel = flash_kernel) -> None:
        self._shape, self._device, self._kernel = shape, device, kernel
        self._paged = paged

    def prepare(self, rows: StepArrays) -> Prepared:
        size, decodes = self._shape.block_size, rows.decodes
        if rows.first[decodes:].any() or decodes == len(rows):
            none = self._ids(np.empty(0, np.int64))
            return Prepared(self._paged.prepare(rows), len(rows.token), none, none, ())
        chunks = []
        for index in range(decodes, len(rows)):
            start, stop = int(rows.query_start[index]), int(rows.query_start[index + 1])
            before = int(rows.context[index]) - (stop - start)
            pages = rows.tables[index, : -(-before // size)].astype(np.int64)
            chunks.append(_Chunk(start, stop, before, self._ids(pages)))
        slot = rows.slot[decodes:]
        paged = self._paged.prepare(rows.first_rows(decodes)) if decodes else None
        return Prepared(paged, decodes, self._ids(slot // size), self._ids(slot % size), chunks)

    def attend(
        self, query: Tensor, key: Tensor, value: Tensor, kv: Tensor, prepared: Prepared, *, scales: KVScales = UNSCALED
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

    def _chunk(self, query: Tensor, key: Tensor, value: Tensor, kv: Tensor, chunk: _Chunk, scales: KVScales) -> Tensor:
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
