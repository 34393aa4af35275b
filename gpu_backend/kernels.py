"""The Triton kernels: e4m3 numbers, attention over pages, and a layer's small operators."""
# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
# Triton compiles these functions from their source: their arguments are pointers and scalars of its own language.

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from gpu_backend.decoder import NORM_EPS, norm
from gpu_backend.weights import E4M3, LARGEST, SMALLEST_SCALE, Layer, Norm

# e4m3 numbers in Triton: rounding to them, and quantising activations.


_WIDE = 4096  # elements of a row from which on eight warps share it


@triton.jit
def cut(x, kind: tl.constexpr, emulated: tl.constexpr):
    """float32 as `kind`. An e4m3 number beyond the largest would be NaN, so it is cut there.

    `emulated` is for the interpreter, whose cast to e4m3 rounds upwards and forgets to carry: it is given numbers that
    are e4m3's already, the nearest multiple of an eighth of their power of two.
    """
    if kind == tl.float8e4nv:
        x = tl.clamp(x, -448.0, 448.0)
        if emulated:
            power = (x.to(tl.int32, bitcast=True) & 0x7F800000).to(tl.float32, bitcast=True)
            step = tl.maximum(power * 0.125, 0.001953125)  # 2^-9: no number lies nearer to 0
            x = ((x / step + 12582912.0) - 12582912.0) * step  # 1.5 * 2^23 leaves no digit behind the point
    return x.to(kind)


@triton.jit(do_not_specialize=["largest", "smallest"])
def quantised(
    x, out, scales, largest, smallest, width: tl.constexpr, block: tl.constexpr, emulated: tl.constexpr
):  # fmt: skip
    """out = x / scale in e4m3, scale [tokens]: a row's largest number becomes `largest`. One program a token."""
    token = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, block)
    there = column < width
    row = tl.load(x + token * width + column, mask=there, other=0.0).to(tl.float32)
    scale = tl.maximum(tl.max(tl.abs(row), 0) / largest, smallest)
    tl.store(scales + token, scale)
    tl.store(out + token * width + column, cut(row * (1.0 / scale), out.dtype.element_ty, emulated), mask=there)


INTERPRETED = not isinstance(quantised, triton.JITFunction)
"""True if TRITON_INTERPRET=1 was set when triton was loaded: then kernels run on CPU tensors, slowly."""


def warps(block: int) -> int:
    """Warps of a program that has a row of so many elements."""
    return 8 if block >= _WIDE else 4


def quantised_rows(x: Tensor) -> tuple[Tensor, Tensor]:
    """`gpu_backend.weights.quantised_rows` in one kernel."""
    tokens, width = x.shape
    out, scales = torch.empty_like(x, dtype=E4M3), x.new_empty((tokens, 1), dtype=torch.float32)
    if tokens:
        block = triton.next_power_of_2(width)
        arguments = x.contiguous(), out, scales, LARGEST, SMALLEST_SCALE
        quantised[(tokens,)](*arguments, width=width, block=block, emulated=INTERPRETED, num_warps=warps(block))
    return out, scales


# Attention over pages, the merge of partial results, and writing keys and values to their slots.
#
# The cache of a layer is [block, 2, kv_head, page, head_dim], keys before values. Scores are kept in units of log2,
# with the scale folded in, so that exp2 does. Sums are float32, and the weights are rounded to the type of the
# values before the second product, as every fast attention does. tools/kernel_bench/NOTES.md says why it is cut as
# it is.
#
# `upcast` is for the interpreter, whose dot multiplies the raw bits of bfloat16. `precision` is that of float32
# products.


@triton.jit
def _step(
    acc, top, total, q, kv, table, start, end, positions, scale_log2, stride_block,
    kv_heads: tl.constexpr, head_dim: tl.constexpr, block_d: tl.constexpr, page: tl.constexpr, block_n: tl.constexpr,
    masked: tl.constexpr, upcast: tl.constexpr, precision: tl.constexpr,
    known, known_from, table_once: tl.constexpr, evict: tl.constexpr, kind: tl.constexpr,
):  # fmt: skip
    """One tile of keys: online softmax of `acc` with its row maxima `top` and sums `total`. `kv` is at the head.

    With `table_once`, `known` are the table's entries from page `known_from` on. `kind` is the type of queries.
    """
    keys = start + tl.arange(0, block_n)
    dims = tl.arange(0, block_d)
    if table_once:  # the last tile may reach beyond the item, where any entry does: nothing is loaded there
        block = tl.gather(known, tl.minimum(keys // page - known_from, known.shape[0] - 1), 0)
    else:
        here = table + keys // page
        block = tl.load(here, mask=keys < end, other=0) if masked else tl.load(here)
    rows = block.to(tl.int64) * stride_block + (keys % page) * head_dim
    k_at = kv + rows[:, None] + dims[None, :]
    v_at = k_at + kv_heads * page * head_dim
    if masked:  # what lies behind the last key may be anything, NaN too, and 0 * NaN is NaN
        there = (keys < end)[:, None] & (dims < head_dim)[None, :]
        k = tl.load(k_at, mask=there, other=0.0, eviction_policy=evict)
        v = tl.load(v_at, mask=there, other=0.0, eviction_policy=evict)
    elif block_d != head_dim:
        k = tl.load(k_at, mask=(dims < head_dim)[None, :], other=0.0, eviction_policy=evict)
        v = tl.load(v_at, mask=(dims < head_dim)[None, :], other=0.0, eviction_policy=evict)
    else:
        k = tl.load(k_at, eviction_policy=evict)
        v = tl.load(v_at, eviction_policy=evict)
    if upcast:
        k = k.to(tl.float32)
        v = v.to(tl.float32)
    elif kv.dtype.element_ty != kind:  # fp8 pages: every e4m3 number is one of `kind` too
        k = k.to(kind)
        v = v.to(kind)
    scores = tl.dot(q, tl.trans(k), input_precision=precision)
    if masked:
        scores = tl.where((keys < end)[None, :] & (keys[None, :] <= positions[:, None]), scores, -float("inf"))
    new_top = tl.maximum(top, tl.max(scores, 1) * scale_log2)
    # A row that has seen no key yet has -inf here, and -inf - -inf is NaN.
    base = tl.where(new_top == -float("inf"), 0.0, new_top) if masked else new_top
    weights = tl.exp2(scores * scale_log2 - base[:, None])
    keep = tl.exp2(top - base)
    total = total * keep + tl.sum(weights, 1)
    rounded = weights.to(kind)
    if upcast:
        rounded = rounded.to(tl.float32)
    acc = tl.dot(rounded, v, acc * keep[:, None], input_precision=precision)
    return acc, new_top, total


# The arguments named here change from step to step; a kernel compiled anew for each would be timed.
@triton.jit(do_not_specialize=["stride_table", "slot_rows", "scale_log2", "value_scale"])
def attend(
    q,  # [tokens, heads, head_dim], the last two contiguous
    kv,  # [blocks, 2, kv_heads, page, head_dim], all but the first contiguous
    tables,  # int32 [seqs, max_blocks]
    entries,  # int32 [n, 8], see worklist.ENTRY
    counts,  # int32 [2]: entries, merges
    out,  # like q
    partial,  # float32 [slots * kv_heads, slot_rows, head_dim]
    partial_log,  # float32 [slots * kv_heads, slot_rows]: log2 of the sums of exponents
    scale_log2,  # the scale times log2(e), and that of the keys
    value_scale,  # what values are multiplied by
    stride_q,
    stride_out,
    stride_block,
    stride_table,
    slot_rows,
    kv_heads: tl.constexpr,
    group: tl.constexpr,
    head_dim: tl.constexpr,
    block_d: tl.constexpr,
    page: tl.constexpr,
    block_m: tl.constexpr,
    block_n: tl.constexpr,
    upcast: tl.constexpr,
    precision: tl.constexpr,
    table_once: tl.constexpr,
    evict: tl.constexpr,
    entries_known: tl.constexpr,
):
    """Attention of the tiles in `entries`, every KV head of each; items are dealt to the programs in turn."""
    for item in range(tl.program_id(0), tl.load(counts) * kv_heads, tl.num_programs(0)):
        head = item % kv_heads
        entry = entries + (item // kv_heads) * 8
        table = tables + tl.load(entry).to(tl.int64) * stride_table
        first_row = tl.load(entry + 1)
        rows = tl.load(entry + 2)
        shift = tl.load(entry + 3)
        begin = tl.load(entry + 4)
        full = tl.load(entry + 5)
        end = tl.load(entry + 6)
        slot = tl.load(entry + 7)

        inside = tl.arange(0, block_m)
        dims = tl.arange(0, block_d)
        token = (first_row + inside) // group
        query_head = head * group + (first_row + inside) % group
        there = (inside < rows)[:, None] & (dims < head_dim)[None, :]
        at = (query_head * head_dim)[:, None] + dims[None, :]
        query = tl.load(q + token.to(tl.int64)[:, None] * stride_q + at, mask=there, other=0.0)
        if upcast:
            query = query.to(tl.float32)

        acc = tl.zeros([block_m, block_d], dtype=tl.float32)
        top = tl.full([block_m], -float("inf"), dtype=tl.float32)
        total = tl.zeros([block_m], dtype=tl.float32)
        positions = token + shift
        cache = kv + head * (page * head_dim)
        kind: tl.constexpr = q.dtype.element_ty
        known_from = begin // page
        known = tl.arange(0, entries_known)
        if table_once:
            known = tl.load(table + known_from + known, mask=(known_from + known) * page < end, other=0)
        for start in range(begin, full, block_n):
            acc, top, total = _step(
                acc, top, total, query, cache, table, start, end, positions, scale_log2, stride_block,
                kv_heads, head_dim, block_d, page, block_n, False, upcast, precision,
                known, known_from, table_once, evict, kind,
            )  # fmt: skip
        for start in tl.range(full, end, block_n, num_stages=1):
            acc, top, total = _step(
                acc, top, total, query, cache, table, start, end, positions, scale_log2, stride_block,
                kv_heads, head_dim, block_d, page, block_n, True, upcast, precision,
                known, known_from, table_once, evict, kind,
            )  # fmt: skip

        acc = acc * (value_scale / tl.where(total == 0.0, 1.0, total))[:, None]
        if slot < 0:
            out_at = out + token.to(tl.int64)[:, None] * stride_out + at
            tl.store(out_at, acc.to(out.dtype.element_ty), mask=there)
        else:
            place = (slot * kv_heads + head).to(tl.int64) * slot_rows + inside
            tl.store(partial + place[:, None] * head_dim + dims[None, :], acc, mask=there)
            tl.store(partial_log + place, top + tl.log2(total), mask=inside < rows)  # -inf where no key was seen


@triton.jit(do_not_specialize=["slot_rows"])
def merge(
    partial,
    partial_log,
    merges,  # int32 [m, 4], see worklist.MERGE
    counts,
    out,
    stride_out,
    slot_rows,
    kv_heads: tl.constexpr,
    group: tl.constexpr,
    head_dim: tl.constexpr,
    block_d: tl.constexpr,
    block_rows: tl.constexpr,
    block_parts: tl.constexpr,
):
    """The outputs of tiles that were cut: partial results, weighted by their shares of the sums of exponents."""
    inside = tl.program_id(1) * block_rows + tl.arange(0, block_rows)
    dims = tl.arange(0, block_d)
    for item in range(tl.program_id(0), tl.load(counts + 1) * kv_heads, tl.num_programs(0)):
        head = item % kv_heads
        entry = merges + (item // kv_heads) * 4
        first_row = tl.load(entry)
        rows = tl.load(entry + 1)
        slot = tl.load(entry + 2)
        parts = tl.load(entry + 3)
        acc = tl.zeros([block_rows, block_d], dtype=tl.float32)
        top = tl.full([block_rows], -float("inf"), dtype=tl.float32)
        total = tl.zeros([block_rows], dtype=tl.float32)
        valid = inside < rows
        for start in range(0, parts, block_parts):
            part = start + tl.arange(0, block_parts)
            place = ((slot + part) * kv_heads + head).to(tl.int64)[:, None] * slot_rows + inside[None, :]
            known = (part < parts)[:, None] & valid[None, :]
            log = tl.load(partial_log + place, mask=known, other=-float("inf"))
            there = known[:, :, None] & (dims < head_dim)[None, None, :]
            value = tl.load(partial + place[:, :, None] * head_dim + dims[None, None, :], mask=there, other=0.0)
            new_top = tl.maximum(top, tl.max(log, 0))
            base = tl.where(new_top == -float("inf"), 0.0, new_top)
            weight = tl.exp2(log - base[None, :])
            keep = tl.exp2(top - base)
            total = total * keep + tl.sum(weight, 0)
            acc = acc * keep[:, None] + tl.sum(value * weight[:, :, None], 0)
            top = new_top
        acc = acc / tl.where(total == 0.0, 1.0, total)[:, None]
        row = first_row + inside
        at = ((head * group + row % group) * head_dim)[:, None] + dims[None, :]
        out_at = out + (row // group).to(tl.int64)[:, None] * stride_out + at
        tl.store(out_at, acc.to(out.dtype.element_ty), mask=valid[:, None] & (dims < head_dim)[None, :])


@triton.jit(do_not_specialize=["into_key", "into_value"])
def write(
    key,  # [tokens, kv_heads, head_dim], the last two contiguous
    value,
    kv,
    slots,  # int32 [tokens]: block * page + offset; negative: nowhere
    into_key,  # what they are multiplied by before they are stored in fp8
    into_value,
    stride_key,
    stride_value,
    stride_block,
    kv_heads: tl.constexpr,
    head_dim: tl.constexpr,
    block_h: tl.constexpr,
    block_d: tl.constexpr,
    page: tl.constexpr,
    emulated: tl.constexpr,
):
    """Keys and values of a token, all heads, to its slot. One program a token."""
    token = tl.program_id(0).to(tl.int64)
    slot = tl.load(slots + token).to(tl.int64)
    if slot >= 0:
        heads = tl.arange(0, block_h)
        dims = tl.arange(0, block_d)
        there = (heads < kv_heads)[:, None] & (dims < head_dim)[None, :]
        at = heads[:, None] * head_dim + dims[None, :]
        to = kv + (slot // page) * stride_block + (slot % page) * head_dim
        to += heads[:, None] * (page * head_dim) + dims[None, :]
        k = tl.load(key + token * stride_key + at, mask=there)
        v = tl.load(value + token * stride_value + at, mask=there)
        if kv.dtype.element_ty == tl.float8e4nv:
            k = cut(k.to(tl.float32) * into_key, tl.float8e4nv, emulated)
            v = cut(v.to(tl.float32) * into_value, tl.float8e4nv, emulated)
        tl.store(to, k, mask=there)
        tl.store(to + kv_heads * page * head_dim, v, mask=there)


# A layer's small operators. Each reads its input once, computes in float32 and rounds what it stores.
#
# The residual stream is rounded before its norm is taken, and a normed head before it is turned, as torch does.


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
    """`gpu_backend.decoder.Placing` on a CUDA device, or in Triton's interpreter. LayerNorms are torch's."""

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
