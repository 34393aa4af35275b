"""Paged attention in one call, from lists, arrays or tensors: for tests and trials of the kernels."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import numpy.typing as npt
from torch import Tensor

from gpu_backend.attention.paged import PagedAttention, StepSequences
from gpu_backend.attention.worklist import Ints, Longs

_attention = lru_cache(maxsize=32)(PagedAttention)


def paged_attention(
    q: Tensor,
    kv_cache: Tensor,
    block_tables: Tensor | Ints,
    context_lens: npt.ArrayLike,
    query_lens: npt.ArrayLike,
    *,
    first: npt.ArrayLike | None = None,
    scale: float | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """Causal attention of a ragged batch to its pages, in one call: prompts, chunks behind a prefix, and decodes.

    `q` [tokens, heads, head_dim] float16, bfloat16 or float32, the sequences' tokens one after another; `kv_cache`
    [blocks, 2, kv_heads, block_size, head_dim] of the same type, the step's own keys and values already in it
    (`write_kv`); `block_tables` int32 [seqs, max_blocks]; `context_lens` [seqs], keys of each sequence including the
    step's own; `query_lens` [seqs], its tokens in this step, which are its last (0: none); `first` [seqs], leading
    keys to skip; `scale` 1 / sqrt(head_dim) unless given. Returns [tokens, heads, head_dim] of `q`'s type.

    Lengths and tables should be on the host: from the device they are fetched, which waits for it. A model prepares
    once a step and calls `PagedAttention.attend` in each layer instead. Raises ValueError for shapes, types and
    lengths that do not fit together.
    """
    _, _, kv_heads, block_size, head_dim = kv_cache.shape
    attention = _attention(q.shape[1], kv_heads, head_dim, block_size, q.device, q.dtype, scale=scale)
    query = _longs(query_lens)
    if len(q) != query.sum():
        raise ValueError(f"query_lens add up to {query.sum()}, and q has {len(q)} tokens")
    tables = block_tables.cpu().numpy() if isinstance(block_tables, Tensor) else block_tables
    skip = np.zeros_like(query) if first is None else _longs(first)
    step = StepSequences(_longs(context_lens), query, skip, tables, np.empty(0, np.int32))
    return attention.look(q, kv_cache, attention.prepare_step(step), out)


def _longs(lengths: npt.ArrayLike) -> Longs:
    values = lengths.cpu().numpy() if isinstance(lengths, Tensor) else lengths
    return np.asarray(values, dtype=np.int64)
