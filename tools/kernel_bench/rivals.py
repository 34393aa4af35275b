"""Other attention kernels, on the same cases: torch's own over the gathered cache, and paged ones that are installed.

Each takes a case, a pool, a copy's block table and queries, and returns a call to measure; or raises NotHere with the
reason.
"""

import importlib
import importlib.util
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor

from gpu_backend.kernel_choice import ATTENTION, open_attention
from gpu_backend.work import AttentionShape, ScheduledPart, step_arrays
from tools.kernel_bench.cases import HEAD_DIM, HEADS, KV_HEADS, PAGE, Case, Pool, Run, Table

Rival = Callable[[Case, Pool, Table, Tensor], Run]


class NotHereError(Exception):
    """Why a rival does not take part."""


def _dense_only(case: Case) -> bool:
    """True if the case is a pure decode. Raises NotHereError if lengths differ or there is a prefix."""
    if len(set(case.context)) > 1 or len(set(case.query)) > 1:
        raise NotHereError("lengths differ: it would have to pad")
    if case.query[0] not in (1, case.context[0]):
        raise NotHereError("a chunk behind a prefix")
    return case.query[0] == 1


def _imported(module: str) -> Any:
    if importlib.util.find_spec(module) is None:
        raise NotHereError(f"{module} is not installed")
    return importlib.import_module(module)


def _batched(case: Case, q: Tensor) -> Tensor:
    """Queries as [batch, heads, tokens, head_dim]."""
    return q.view(len(case.context), case.query[0], HEADS, HEAD_DIM).transpose(1, 2)


def torch_sdpa(case: Case, pool: Pool, table: Table, q: Tensor) -> Run:
    """`scaled_dot_product_attention` over the gathered cache; the gathering is not counted."""
    is_decode = _dense_only(case)
    keys, values = pool.gathered(case, table)
    batched = _batched(case, q)

    def run() -> Tensor:
        out = torch.nn.functional.scaled_dot_product_attention(
            batched, keys, values, is_causal=not is_decode, enable_gqa=True
        )
        return out.transpose(1, 2).reshape(q.shape)

    return run


def torch_flex(case: Case, pool: Pool, table: Table, q: Tensor) -> Run:
    """Compiled `flex_attention` over the gathered cache; the gathering is not counted."""
    is_decode = _dense_only(case)
    if q.device.type != "cuda":
        raise NotHereError("compiling it for a CPU takes most of a minute")
    from torch.nn.attention.flex_attention import create_block_mask

    keys, values = pool.gathered(case, table)
    batched = _batched(case, q).contiguous()
    n = case.context[0]
    mask = None if is_decode else create_block_mask(_causal, None, None, n, n, device=str(q.device))
    flex = _compiled_flex()

    def run() -> Tensor:
        out: Tensor = flex(batched, keys, values, block_mask=mask, enable_gqa=True)
        return out.transpose(1, 2).reshape(q.shape)

    return run


def _causal(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
    return query >= key


@cache
def _compiled_flex() -> Any:
    from torch.nn.attention.flex_attention import flex_attention

    return torch.compile(flex_attention)


def flash_attn(case: Case, pool: Pool, table: Table, q: Tensor) -> Run:
    """`flash_attn_with_kvcache` over the gathered cache: its pages are of 256 tokens and more, not of 16."""
    _dense_only(case)
    kernel = _imported("flash_attn").flash_attn_with_kvcache
    keys, values = (tensor.transpose(1, 2).contiguous() for tensor in pool.gathered(case, table))
    tokens = q.view(len(case.context), case.query[0], HEADS, HEAD_DIM)
    lengths = torch.tensor(case.context, dtype=torch.int32, device=q.device)

    def run() -> Tensor:
        out: Tensor = kernel(tokens, keys, values, cache_seqlens=lengths, causal=True)
        return out.view(q.shape)

    return run


def of_seam(name: str) -> Rival:
    """An attention of `gpu_backend.kernel_choice` as a model calls it: the step's keys and values written too."""

    def rival(case: Case, pool: Pool, table: Table, q: Tensor) -> Run:
        missing = ATTENTION[name].missing(q.device.type)
        if missing is not None:
            raise NotHereError(missing)
        if name in CHUNKS_ONLY and set(case.query) == {1}:
            raise NotHereError("decodes are left to our kernel")
        shape = AttentionShape(HEADS, KV_HEADS, HEAD_DIM, PAGE)
        attention = open_attention(name, shape, q.device.type, q.dtype)
        decodes = sum(tokens == 1 for tokens in case.query)
        parts = [
            ScheduledPart(row, keys - tokens, [0] * tokens, table[row].tolist())
            for row, (keys, tokens) in enumerate(zip(case.context, case.query, strict=True))
        ]
        prepared = attention.prepare(step_arrays(parts, decodes, PAGE))
        # Those that the pages hold already, so that writing them changes nothing.
        slots = torch.from_numpy(step_arrays(parts, decodes, PAGE).slot).to(q.device)
        key, value = (pool.kv[slots // PAGE, both, :, slots % PAGE].contiguous() for both in (0, 1))
        return lambda: attention.attend(q, key, value, pool.kv, prepared)

    return rival


CHUNKS_ONLY = ("gathered", "cudnn")

RIVALS: dict[str, Rival] = {
    "torch SDPA": torch_sdpa,
    "gathered": of_seam("gathered"),
    "cudnn": of_seam("cudnn"),
    "FlashInfer": of_seam("flashinfer"),
    "FlashAttention-3": of_seam("flash-attn-3"),
    "vLLM": of_seam("vllm"),
    "flash_attn": flash_attn,
    "torch flex_attention": torch_flex,
}
SLOW_TO_COMPILE = ("torch flex_attention",)
"""Left out of a campaign."""
