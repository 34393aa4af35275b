"""Attention over pages in float64, a sequence at a time: what the kernels are compared with. Plain torch."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from gpu_backend.fp8 import taken


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
