"""Attention kernels of other projects over our pages, where they are installed: FlashInfer, FlashAttention-3, vLLM's.

None of them skips leading keys, so a step with left padding is refused. Their pages are not in fp8.
"""

from __future__ import annotations

import importlib
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gpu_backend.fp8 import put
from gpu_backend.work import UNSCALED, AttentionShape, KVScales, StepArrays
from simulator.errors import InputError

Kernel = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class Prepared:
    """A step on the device: slots of its tokens, and what a kernel asks for."""

    page: Tensor  # [T], of each token's slot
    offset: Tensor  # [T], in that page
    tables: Tensor  # int32 [S, pages]
    context: Tensor  # int32 [S]
    query_start: Tensor  # int32 [S + 1]
    most_queries: int
    most_keys: int


class _Paged(ABC):
    """The base of these backends: it writes keys and values to their slots, and looks at the pages after that."""

    def __init__(self, shape: AttentionShape, device: str, dtype: torch.dtype) -> None:
        self._shape, self._device, self._dtype = shape, device, dtype

    def prepare(self, rows: StepArrays) -> Prepared:
        if rows.first.any():
            raise InputError("this attention cannot skip left padding", hint="attention triton or torch")
        size = self._shape.block_size
        parts = rows.slot // size, rows.slot % size, rows.tables, rows.context, rows.query_start
        there = [torch.from_numpy(np.ascontiguousarray(part)).to(self._device) for part in parts]
        page, offset, tables, context, query_start = there
        most_queries, most_keys = int(np.diff(rows.query_start).max()), int(rows.context.max())
        return Prepared(page, offset, tables, context, query_start, most_queries, most_keys)

    def attend(
        self, query: Tensor, key: Tensor, value: Tensor, kv: Tensor, prepared: Prepared, *, scales: KVScales = UNSCALED
    ) -> Tensor:
        put(kv, prepared.page, prepared.offset, key, value, scales)
        return self._look(query, kv, prepared)

    @abstractmethod
    def _look(self, query: Tensor, kv: Tensor, prepared: Prepared) -> Tensor:
        """Attention of `query` to the pages."""


class Flash3(_Paged):
    """FlashAttention's paged interface, in FlashAttention-3's words; `kernel` comes from what is installed.

    Our pages are [block, kv_head, slot, head_dim], theirs [block, slot, kv_head, head_dim]: a view, not a copy.
    """

    def __init__(self, shape: AttentionShape, device: str, dtype: torch.dtype, kernel: Kernel) -> None:
        super().__init__(shape, device, dtype)
        self._kernel = kernel

    def _look(self, query: Tensor, kv: Tensor, prepared: Prepared) -> Tensor:
        keys, values = kv[:, 0].transpose(1, 2), kv[:, 1].transpose(1, 2)
        out: Tensor = self._kernel(query, keys, values, prepared)
        return out


def flash3_kernel() -> Kernel:
    """The kernel of the package flash_attn_interface."""
    call = importlib.import_module("flash_attn_interface").flash_attn_with_kvcache

    def kernel(query: Tensor, keys: Tensor, values: Tensor, prepared: Prepared) -> Any:
        return call(
            query, keys, values, cache_seqlens=prepared.context, page_table=prepared.tables,
            cu_seqlens_q=prepared.query_start, max_seqlen_q=prepared.most_queries, causal=True,
        )  # fmt: skip

    return kernel


def vllm_kernel() -> Kernel:
    """The kernel of vLLM's own build of FlashAttention."""
    call = importlib.import_module("vllm.vllm_flash_attn").flash_attn_varlen_func

    def kernel(query: Tensor, keys: Tensor, values: Tensor, prepared: Prepared) -> Any:
        return call(
            q=query, k=keys, v=values, cu_seqlens_q=prepared.query_start, max_seqlen_q=prepared.most_queries,
            seqused_k=prepared.context, max_seqlen_k=prepared.most_keys, block_table=prepared.tables, causal=True,
        )  # fmt: skip

    return kernel


class FlashInfer(_Paged):
    """FlashInfer's paged prefill kernel, which takes decodes and chunks together; its layout HND is ours."""

    def __init__(self, shape: AttentionShape, device: str, dtype: torch.dtype) -> None:
        super().__init__(shape, device, dtype)
        make = importlib.import_module("flashinfer").BatchPrefillWithPagedKVCacheWrapper
        self._wrapper = make(torch.empty(256 << 20, dtype=torch.uint8, device=device), "HND")

    def prepare(self, rows: StepArrays) -> Prepared:
        prepared = super().prepare(rows)
        shape, size = self._shape, self._shape.block_size
        pages = -(-rows.context // size)
        listed = np.concatenate([rows.tables[index, :count] for index, count in enumerate(pages)])
        self._wrapper.plan(
            prepared.query_start,
            torch.from_numpy(np.concatenate(([0], np.cumsum(pages))).astype(np.int32)).to(self._device),
            torch.from_numpy(listed.astype(np.int32)).to(self._device),
            torch.from_numpy(((rows.context - 1) % size + 1).astype(np.int32)).to(self._device),
            *(shape.heads, shape.kv_heads, shape.head_dim, size),
            causal=True,
            q_data_type=self._dtype,
            kv_data_type=self._dtype,
        )
        return prepared

    def _look(self, query: Tensor, kv: Tensor, prepared: Prepared) -> Tensor:
        del prepared  # the wrapper keeps its plan
        out: Tensor = self._wrapper.run(query, kv)
        return out
