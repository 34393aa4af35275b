"""Steps to measure the attention kernels on, over one large pool of random pages."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from gpu_backend.weights import random_pages, taken

# Attention over pages in float64, a sequence at a time: what the kernels are compared with. Plain torch.


def reference_attention(
    q: Tensor,
    kv_cache: Tensor,
    block_tables: Tensor,
    context_lens: Sequence[int],
    query_lens: Sequence[int],
    *,
    first: Sequence[int] | None = None,
    scale: float | None = None,
    kv_scales: tuple[float, float] = (1.0, 1.0),
) -> Tensor:
    """`paged_attention` in float64: equal arguments, on any device. Returns float64.

    `kv_scales` are what the numbers in the pages are multiplied by, keys and values.
    """
    heads, head_dim = q.shape[1:]
    page = kv_cache.shape[3]
    group = heads // kv_cache.shape[2]
    scale = head_dim**-0.5 if scale is None else scale
    out = torch.zeros(q.shape, dtype=torch.float64, device=q.device)
    start = 0
    for index, (context, query) in enumerate(zip(context_lens, query_lens, strict=True)):
        if not query:
            continue
        skip = 0 if first is None else int(first[index])
        blocks = block_tables[index, : -(-context // page)].long()
        pages = taken(kv_cache, blocks).double()  # [blocks, 2, kv_heads, page, head_dim]
        keys, values = pages.permute(1, 2, 0, 3, 4).flatten(2, 3)[:, :, skip:context]
        keys, values = keys * kv_scales[0], values * kv_scales[1]
        keys, values = keys.repeat_interleave(group, 0), values.repeat_interleave(group, 0)
        scores = torch.einsum("thd,hkd->htk", q[start : start + query].double(), keys) * scale
        places = torch.arange(skip, context, device=q.device)
        tokens = torch.arange(context - query, context, device=q.device)
        scores = scores.masked_fill(places[None, :] > tokens[:, None], float("-inf"))
        weights = torch.nan_to_num(torch.softmax(scores, dim=-1))  # a token without a key has none
        out[start : start + query] = torch.einsum("htk,hkd->thd", weights, values)
        start += query
    return out


# The cases.

PAGE = 16
HEADS, KV_HEADS, HEAD_DIM = 32, 8, 128
"""Of Llama-3.1-8B, and of many others."""


CACHE_BYTES = 1 << 30
"""Bytes of keys and values that a case's copies have together: many times any GPU's L2."""

Table = np.ndarray[tuple[int, ...], np.dtype[np.int32]]
"""A block table [sequences, pages]."""


@dataclass(frozen=True, slots=True)
class Case:
    """A step: keys of each sequence, and how many of them are this step's own tokens.

    `bound` is what limits it: "bytes" or "flops". `target` is the share of that ceiling that it should reach, `best`
    the share of a hand-written kernel (FlashAttention-3 on the H200, from public tables).
    """

    name: str
    context: tuple[int, ...]
    query: tuple[int, ...]
    bound: str
    target: float | None = None
    best: float | None = None

    @property
    def pages(self) -> int:
        """Pages of the pool that one copy of the case needs."""
        return sum(-(-keys // PAGE) for keys in self.context)

    @property
    def kv_bytes(self) -> int:
        """Bytes of keys and values in 16-bit numbers."""
        return sum(self.context) * 2 * KV_HEADS * HEAD_DIM * 2

    def bytes(self, itemsize: int, kv_itemsize: int | None = None) -> int:
        """Bytes to move: keys and values once, queries once, outputs once; keys and values may be smaller."""
        kept = sum(self.context) * 2 * KV_HEADS * (kv_itemsize or itemsize)
        return HEAD_DIM * (kept + sum(self.query) * 2 * HEADS * itemsize)

    @property
    def flops(self) -> int:
        """Operations of the two products, over the pairs that causal attention sees."""
        pairs = sum(n * (keys - n) + n * (n + 1) // 2 for keys, n in zip(self.context, self.query, strict=True))
        return 4 * HEADS * HEAD_DIM * pairs


def decode(name: str, batch: int, keys: int, target: float | None = None, best: float | None = None) -> Case:
    """A decode step of equal contexts."""
    return Case(name, (keys,) * batch, (1,) * batch, "bytes", target, best)


def cases(scale: int) -> list[Case]:
    """Every case; contexts divided by `scale`, which is 1 on a GPU."""
    k = 1024 // scale
    return [
        decode("decode B64 ctx 4k", 64, 4 * k, 0.90, 0.99),
        decode("decode B8 ctx 4k", 8, 4 * k, 0.65, 0.74),
        decode("decode B1 ctx 32k", 1, 32 * k, 0.60, 0.72),
        Case("prefill 8k", (8 * k,), (8 * k,), "flops", 0.50, 0.74),
        Case("decode, skewed", (32 * k, *(k,) * 63), (1,) * 64, "bytes"),
        Case("chunk 2k behind 8k", (10 * k,), (2 * k,), "flops"),
        Case("chunk 256 behind 32k", (32 * k + k // 4,), (k // 4,), "flops"),
        Case("ragged prefill", (3 * k, k, 2 * k, k // 2), (3 * k, k, 2 * k, k // 2), "flops"),
        Case("mixed: 64 decodes at 4k, chunk 1k", (*(4 * k,) * 64, 2 * k), (*(1,) * 64, k), "bytes"),
    ]


def fp8_cases(scale: int) -> list[Case]:
    """Cases over pages in fp8, those first that should gain most: half the bytes, and as many operations."""
    k = 1024 // scale
    return [
        decode("decode B64 ctx 4k, fp8 KV", 64, 4 * k),
        decode("decode B1 ctx 32k, fp8 KV", 1, 32 * k),
        Case("mixed: 64 decodes at 4k, chunk 1k, fp8 KV", (*(4 * k,) * 64, 2 * k), (*(1,) * 64, k), "bytes"),
        decode("decode B8 ctx 4k, fp8 KV", 8, 4 * k),
        Case("prefill 8k, fp8 KV", (8 * k,), (8 * k,), "flops"),
    ]


def latency_cases(scale: int) -> list[Case]:
    """Batches of 1 to 64 at 32k; some of them where contexts are scaled down, which is only a rehearsal."""
    batches = range(1, 65) if scale == 1 else (1, 2, 3, 4)
    return [decode(f"decode B{batch} ctx 32k", batch, 32 * 1024 // scale) for batch in batches]


@dataclass(frozen=True, slots=True)
class Pool:
    """Pages of random numbers, one layer's; no page is used twice at a time."""

    kv: Tensor  # [blocks, 2, kv_heads, page, head_dim]

    @classmethod
    def random(cls, pages: int, device: torch.device, dtype: torch.dtype) -> Pool:
        """So many pages. Random, because zeros run faster than real data does."""
        kv = torch.empty((pages, 2, KV_HEADS, PAGE, HEAD_DIM), dtype=dtype, device=device)
        random_pages(kv, 0)
        return cls(kv)

    def tables(self, case: Case, copies: int, seed: int = 0) -> list[Table]:
        """Block tables of so many copies of a case, all of distinct pages in random order."""
        if copies * case.pages > len(self.kv):
            raise ValueError(f"{copies} copies of {case.name} need {copies * case.pages} pages, not {len(self.kv)}")
        order = np.random.default_rng(seed).permutation(len(self.kv)).astype(np.int32)
        counts = [-(-keys // PAGE) for keys in case.context]
        found: list[Table] = []
        taken = 0
        for _ in range(copies):
            table: Table = np.zeros((len(counts), max(counts)), np.int32)
            for row, count in enumerate(counts):
                table[row, :count] = order[taken : taken + count]
                taken += count
            found.append(table)
        return found

    def copies(self, case: Case, least_bytes: int) -> int:
        """How many copies of a case fill `least_bytes` with keys and values, as far as there are pages; 16 at most."""
        return max(1, min(16, -(-least_bytes // case.kv_bytes), len(self.kv) // case.pages))

    def gathered(self, case: Case, table: Table) -> tuple[Tensor, Tensor]:
        """Keys and values as dense [batch, kv_heads, keys, head_dim], of a case whose contexts are equal."""
        blocks = torch.from_numpy(table).long().to(self.kv.device)
        pages = self.kv[blocks].permute(2, 0, 3, 1, 4, 5).flatten(3, 4)[:, :, :, : case.context[0]]
        return pages[0].contiguous(), pages[1].contiguous()


Run = Callable[[], Tensor]
"""One call of a kernel on one copy of a case; it returns [tokens, heads, head_dim]."""
