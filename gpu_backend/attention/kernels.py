"""The Triton kernels: attention over pages, the merge of partial results, and writing keys and values to their slots.

The cache of a layer is [block, 2, kv_head, page, head_dim], keys before values. Scores are kept in units of log2, with
the scale folded in, so that exp2 does. Sums are float32, and the weights are rounded to the type of the values before
the second product, as every fast attention does. bench/NOTES.md says why it is cut as it is.

`upcast` is for the interpreter, whose dot multiplies the raw bits of bfloat16. `precision` is that of float32 products.
"""
# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
# Triton compiles these functions from their source: their arguments are pointers and scalars of its own language.

from __future__ import annotations

import triton
import triton.language as tl

from gpu_backend.fp8_kernels import cut


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
