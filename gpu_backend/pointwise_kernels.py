"""`gpu_backend.pointwise` as Triton kernels. Each reads its input once, computes in float32 and rounds what it stores.

The residual stream is rounded before its norm is taken, and a normed head before it is turned, as torch does.
"""
# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
# Triton compiles these functions from their source: their arguments are pointers and scalars of its own language.

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from gpu_backend.fp8_kernels import INTERPRETED, cut, quantised_rows, warps
from gpu_backend.pointwise import NORM_EPS, norm
from gpu_backend.weights import Layer, Norm

GATED_BLOCK = 1024


@triton.jit(do_not_specialize=["eps"])
def add_norm(hidden, part, weight, total, normed, eps, width: tl.constexpr, block: tl.constexpr):
    """total = hidden + part, normed = RMSNorm(total): all [tokens, width], contiguous. One program a token."""
    at = tl.program_id(0).to(tl.int64) * width
    column = tl.arange(0, block)
    there = column < width
    left = tl.load(hidden + at + column, mask=there, other=0.0).to(tl.float32)
    right = tl.load(part + at + column, mask=there, other=0.0).to(tl.float32)
    both = (left + right).to(total.dtype.element_ty)
    tl.store(total + at + column, both, mask=there)
    wide = both.to(tl.float32)
    scale = tl.rsqrt(tl.sum(wide * wide, 0) / width + eps)
    by = tl.load(weight + column, mask=there, other=0.0).to(tl.float32)
    tl.store(normed + at + column, (wide * scale * by).to(normed.dtype.element_ty), mask=there)


@triton.jit
def gated(up, out, width: tl.constexpr, block: tl.constexpr):
    """out [tokens, width] = silu(up[:, :width]) * up[:, width:]. A program is a token and `block` columns."""
    token = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * block + tl.arange(0, block)
    there = column < width
    gate = tl.load(up + token * (2 * width) + column, mask=there, other=0.0).to(tl.float32)
    value = tl.load(up + token * (2 * width) + width + column, mask=there, other=0.0).to(tl.float32)
    tl.store(out + token * width + column, (gate * tl.sigmoid(gate) * value).to(out.dtype.element_ty), mask=there)


@triton.jit
def _turned(left, right, cos, sin, weight, eps, pair, there, half: tl.constexpr, normed: tl.constexpr, kind):
    """Heads [rows, half] x 2 in float32: normed if they are, then turned."""
    if normed:
        scale = tl.rsqrt((tl.sum(left * left, 1) + tl.sum(right * right, 1)) / (2 * half) + eps)[:, None]
        first = tl.load(weight + pair, mask=there, other=0.0).to(tl.float32)[None, :]
        second = tl.load(weight + half + pair, mask=there, other=0.0).to(tl.float32)[None, :]
        left = (left * scale * first).to(kind).to(tl.float32)
        right = (right * scale * second).to(kind).to(tl.float32)
    return left * cos - right * sin, right * cos + left * sin


@triton.jit(do_not_specialize=["eps", "into_key", "into_value"])
def place(
    mixed,  # [tokens, heads + 2 * kv_heads, head_dim], contiguous
    query,  # [tokens, heads, head_dim], contiguous
    kv,  # [blocks, 2, kv_heads, page, head_dim], all but the first contiguous
    slots,  # int [tokens]: block * page + offset; negative: nowhere
    rope,  # [positions, 2, head_dim / 2]
    position,  # int64 [tokens]
    query_weight,  # [head_dim], read where `normed`
    key_weight,
    eps,
    into_key,  # what keys and values are multiplied by before they are stored
    into_value,
    stride_block,
    kv_heads: tl.constexpr,
    group: tl.constexpr,
    block_g: tl.constexpr,
    half: tl.constexpr,
    block_d: tl.constexpr,
    page: tl.constexpr,
    normed: tl.constexpr,
    emulated: tl.constexpr,
):
    """A token's query heads of one KV head, its key and its value. A program is a token and a KV head."""
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    head_dim: tl.constexpr = 2 * half
    kind = query.dtype.element_ty
    kept = kv.dtype.element_ty
    pair = tl.arange(0, block_d)
    inside = pair < half
    angle = rope + tl.load(position + token) * head_dim + pair
    cos = tl.load(angle, mask=inside, other=0.0).to(tl.float32)[None, :]
    sin = tl.load(angle + half, mask=inside, other=0.0).to(tl.float32)[None, :]
    row = mixed + token * ((group + 2) * kv_heads * head_dim)

    members = tl.arange(0, block_g)
    there = (members < group)[:, None] & inside[None, :]
    at = (head * group + members)[:, None] * head_dim + pair[None, :]
    left = tl.load(row + at, mask=there, other=0.0).to(tl.float32)
    right = tl.load(row + at + half, mask=there, other=0.0).to(tl.float32)
    left, right = _turned(left, right, cos, sin, query_weight, eps, pair, inside, half, normed, kind)
    to = query + token * (group * kv_heads * head_dim) + at
    tl.store(to, left.to(kind), mask=there)
    tl.store(to + half, right.to(kind), mask=there)

    slot = tl.load(slots + token).to(tl.int64)
    if slot >= 0:
        one = inside[None, :]
        key = row + (group * kv_heads + head) * head_dim + pair[None, :]
        first = tl.load(key, mask=one, other=0.0).to(tl.float32)
        second = tl.load(key + half, mask=one, other=0.0).to(tl.float32)
        first, second = _turned(first, second, cos, sin, key_weight, eps, pair, inside, half, normed, kind)
        page_at = kv + (slot // page) * stride_block + (head * page + slot % page) * head_dim + pair[None, :]
        value = key + kv_heads * head_dim
        values_at = page_at + kv_heads * page * head_dim
        third, fourth = tl.load(value, mask=one), tl.load(value + half, mask=one)
        if kept != kind:  # rounded first, as a page of `kind` would keep them
            first = first.to(kind).to(tl.float32) * into_key
            second = second.to(kind).to(tl.float32) * into_key
            third = third.to(tl.float32) * into_value
            fourth = fourth.to(tl.float32) * into_value
        tl.store(page_at, cut(first, kept, emulated), mask=one)
        tl.store(page_at + half, cut(second, kept, emulated), mask=one)
        tl.store(values_at, cut(third, kept, emulated), mask=one)
        tl.store(values_at + half, cut(fourth, kept, emulated), mask=one)


class TritonPointwise:
    """`gpu_backend.pointwise.Placing` on a CUDA device, or in Triton's interpreter. LayerNorms are torch's."""

    def __init__(self, eps: float = NORM_EPS) -> None:
        self._eps = eps

    def add_norm(self, hidden: Tensor, part: Tensor, by: Norm) -> tuple[Tensor, Tensor]:
        if by.bias is not None:
            total = hidden + part
            return total, norm(total, by, self._eps)
        tokens, width = hidden.shape
        total, normed = torch.empty_like(hidden), torch.empty_like(hidden)
        if tokens:
            block = triton.next_power_of_2(width)
            tensors = hidden.contiguous(), part.contiguous(), by.weight, total, normed
            add_norm[(tokens,)](*tensors, self._eps, width=width, block=block, num_warps=warps(block))
        return total, normed

    def gated(self, up: Tensor) -> Tensor:
        tokens, width = up.shape[0], up.shape[1] // 2
        out = up.new_empty((tokens, width))
        if tokens:
            grid = tokens, triton.cdiv(width, GATED_BLOCK)
            gated[grid](up.contiguous(), out, width=width, block=GATED_BLOCK, num_warps=4)
        return out

    def quantised(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return quantised_rows(x)

    def place(self, mixed: Tensor, layer: Layer, rope: Tensor, position: Tensor, kv: Tensor, slots: Tensor) -> Tensor:
        _, _, kv_heads, page, head_dim = kv.shape
        tokens, heads = len(mixed), mixed.shape[1] - 2 * kv_heads
        query = mixed.new_empty((tokens, heads, head_dim))
        is_normed = layer.query_norm is not None and layer.key_norm is not None
        if tokens:
            place[(tokens, kv_heads)](
                *(mixed.contiguous(), query, kv, slots, rope, position),
                *(layer.query_norm if is_normed else rope, layer.key_norm if is_normed else rope),
                *(self._eps, 1.0 / layer.kv_scales.key, 1.0 / layer.kv_scales.value, kv.stride(0)),
                kv_heads=kv_heads,
                group=heads // kv_heads,
                block_g=triton.next_power_of_2(heads // kv_heads),
                half=head_dim // 2,
                block_d=triton.next_power_of_2(head_dim // 2),
                page=page,
                normed=is_normed,
                emulated=INTERPRETED,
                num_warps=1 if heads // kv_heads <= 8 else 4,
            )
        return query
