"""Checks of the attention's host side, on any device that runs the kernels. Each raises, or returns nothing."""

import sys
from collections.abc import Callable
from functools import lru_cache

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from gpu_backend import kernels
from gpu_backend.attention.paged import PagedAttention, StepSequences, write_kv
from gpu_backend.attention.worklist import Ints, Longs, Tiling, Tilings
from gpu_backend.weights import E4M3, quantised, quantised_rows
from gpu_backend.work import KVScales, StepArrays
from tools.kernel_bench.cases import reference_attention

# Paged attention in one call, from lists, arrays or tensors: for tests and trials of the kernels.

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


# The checks.

SMALL = Tilings(Tiling(16, 16, 32, 4, 1, 2), Tiling(16, 16, 64, 4, 1))


def cache(device: str, blocks: int = 40, kv_heads: int = 2, page: int = 8, head_dim: int = 32) -> Tensor:
    generator = torch.Generator().manual_seed(5)
    return torch.randn((blocks, 2, kv_heads, page, head_dim), generator=generator).to(device)


def normal(device: str, *shape: int, seed: int = 1) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(device)


def attention(device: str, heads: int = 4) -> PagedAttention:
    return PagedAttention(heads, 2, 32, 8, device, torch.float32, choice=SMALL)


def step(context: list[int], query: list[int], seed: int = 0) -> StepSequences:
    """Random pages of the cache above, slots for the step's own tokens."""
    page, blocks = 8, 40
    order = np.random.default_rng(seed).permutation(blocks).astype(np.int32)
    pages = [-(-keys // page) for keys in context]
    tables = np.zeros((len(context), max(pages)), np.int32)
    taken = 0
    for index, count in enumerate(pages):
        tables[index, :count] = order[taken : taken + count]
        taken += count
    assert taken <= blocks
    slots = [
        int(tables[index, place // page]) * page + place % page
        for index, (keys, tokens) in enumerate(zip(context, query, strict=True))
        for place in range(keys - tokens, keys)
    ]
    lengths = np.array(context, np.int64), np.array(query, np.int64)
    return StepSequences(*lengths, np.zeros(len(context), np.int64), tables, np.array(slots, np.int32))


def close(out: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(out.double(), expected, rtol=3e-6, atol=3e-6)


def write(device: str) -> None:
    """Keys and values land in their slots, and nowhere else; a negative slot is skipped."""
    kv = cache(device)
    expected = kv.clone()
    slots = torch.tensor([17, 3, -1, 319, 0], device=device)
    key, value = (normal(device, 5, 2, 32, seed=seed) for seed in (2, 3))
    for token, slot in enumerate(slots.tolist()):
        if slot >= 0:
            expected[slot // 8, 0, :, slot % 8], expected[slot // 8, 1, :, slot % 8] = key[token], value[token]
    write_kv(key, value, kv, slots)
    assert torch.equal(kv, expected)
    write_kv(key[:0], value[:0], kv, slots[:0])
    wide = normal(device, 5, 6, 32)  # keys as a part of a wider projection
    write_kv(wide[:, 1:3], wide[:, 4:6], kv, slots)
    assert torch.equal(kv[2, 0, :, 1], wide[0, 1:3])
    assert torch.equal(kv[2, 1, :, 1], wide[0, 4:6])


def write_fp8(device: str) -> None:
    """Keys and values divided by their scales, rounded to the nearest e4m3 number, cut at the largest."""
    kv, scales = cache(device).to(E4M3), KVScales(0.05, 0.3)
    key, value = (30 * normal(device, 3, 2, 32, seed=seed) for seed in (2, 3))
    slots = torch.tensor([17, -1, 319], device=device)
    write_kv(key, value, kv, slots, scales)
    for both, (given, scale) in enumerate(zip((key, value), scales, strict=True)):
        for token in (0, 2):
            slot = int(slots[token])
            found, expected = kv[slot // 8, both, :, slot % 8].float(), quantised(given[token], scale).float()
            assert torch.equal(found, expected) if device == "cpu" else (found - expected).abs().max() <= 32
            assert float(found.abs().max()) > 200
    rows = torch.cat([normal(device, 5, 96) * 1e3, torch.zeros(1, 96, device=device)])
    for mine, theirs in zip(kernels.quantised_rows(rows), quantised_rows(rows), strict=True):
        assert float((mine.float() - theirs.float()).abs().max()) <= (0 if device == "cpu" else 32)


def one_call(device: str) -> None:
    """`paged_attention` takes lists, arrays and tensors, and a query that is a view."""
    kv, plan = cache(device), step([30, 17, 44], [1, 17, 6])
    q = normal(device, 24, 3, 4, 32)[:, 1]
    tables = torch.from_numpy(plan.tables)
    expected = reference_attention(q, kv, tables.to(device), [30, 17, 44], [1, 17, 6])
    close(paged_attention(q, kv, tables, [30, 17, 44], [1, 17, 6]), expected)
    lengths = torch.tensor([30, 17, 44], device=device), torch.tensor([1, 17, 6], device=device)
    out = torch.empty_like(q)
    assert paged_attention(q, kv, plan.tables, *lengths, out=out) is out
    close(out, expected)
    skipped = reference_attention(q, kv, tables.to(device), [30, 17, 44], [1, 17, 6], first=[5, 2, 40], scale=0.2)
    close(paged_attention(q, kv, tables, [30, 17, 44], [1, 17, 6], first=[5, 2, 40], scale=0.2), skipped)


def write_then_look(device: str) -> None:
    """`attend` sees what it writes: the step's own keys and values, through the backend's rows."""
    plan = step([30, 17, 44], [1, 17, 6])
    starts = np.concatenate(([0], np.cumsum(plan.query))).astype(np.int32)
    none = np.empty(0, np.int64)
    rows = StepArrays(
        decodes=0,
        token=none,
        position=none,
        sampled=none,
        query_start=starts,
        context=plan.context.astype(np.int32),
        first=plan.first.astype(np.int32),
        tables=plan.tables,
        slot=plan.slots.astype(np.int64),
    )
    paged = attention(device)
    prepared = paged.prepare(rows)
    q = normal(device, 24, 4, 32)
    key, value = (normal(device, 24, 2, 32, seed=seed) for seed in (2, 3))
    kv = cache(device)
    mine = kv.clone()
    write_kv(key, value, mine, torch.from_numpy(plan.slots).to(device))
    tables = torch.from_numpy(plan.tables).to(device)
    expected = reference_attention(q, mine, tables, [30, 17, 44], [1, 17, 6])
    close(paged.attend(q, key, value, kv, prepared), expected)
    assert torch.equal(kv, mine)


def reserved(device: str) -> None:
    """Buffers made once serve one step after another, longer and shorter, with the very results of fresh ones."""
    kv, paged = cache(device), attention(device)
    room = paged.reserve(4, 120, cache_tokens=320)
    addresses = [room.buffer.data_ptr(), *(launch.partial.data_ptr() for launch in room.launches)]
    for seed, context in enumerate(([30, 17, 44, 9], [120, 90, 3, 80], [1, 1], [33, 64, 65])):
        plan = step(context, [1] * len(context), seed)
        q = normal(device, len(context), 4, 32)
        fresh = paged.look(q, kv, paged.prepare_step(plan))
        assert paged.prepare_step(plan, into=room) is room
        again = paged.look(q, kv, room)
        assert torch.equal(fresh, again)
        lengths = context, [1] * len(context)
        close(again, reference_attention(q, kv, torch.from_numpy(plan.tables).to(device), *lengths))
    assert addresses == [room.buffer.data_ptr(), *(launch.partial.data_ptr() for launch in room.launches)]


def refused(device: str) -> None:
    """What does not fit together is said, before a kernel reads what it does not own."""
    kv, paged, plan = cache(device), attention(device), step([30, 17], [1, 1])
    q = normal(device, 2, 4, 32)
    room = paged.reserve(2, 40)
    expect("room for", lambda: paged.prepare_step(step([90, 17], [1, 1]), into=room))
    expect("prefill_entries", lambda: paged.prepare_step(step([30, 17], [1, 16]), into=room))
    expect("cannot be less", lambda: paged_attention(q, kv, plan.tables, [30, 0], [1, 1]))
    expect("has 2 tokens", lambda: paged_attention(q, kv, plan.tables, [30, 17], [1, 2]))
    expect("blocks of 8", lambda: paged_attention(q, kv, plan.tables, [30, 90], [1, 1]))
    expect("one row a sequence", lambda: paged_attention(q, kv, plan.tables, [30], [2]))
    expect("negative", lambda: paged_attention(q, kv, plan.tables, [30, 17], [1, 1], first=[0, -1]))
    expect("query must be", lambda: paged.look(q[:, :2], kv, paged.prepare_step(plan)))
    expect("the cache must be", lambda: paged.look(q, kv.transpose(0, 1), paged.prepare_step(plan)))
    expect("both must be", lambda: paged.look(q.half(), kv, paged.prepare_step(plan)))
    expect("cannot share", lambda: attention(device, heads=3))
    expect("must be", lambda: write_kv(q, q, kv, torch.zeros(2, dtype=torch.int32, device=device)))


def expect(message: str, call: Callable[[], object]) -> None:
    """Raise AssertionError unless the call raises ValueError with that in its message."""
    try:
        call()
    except ValueError as error:
        said = str(error)
    else:
        said = "nothing"
    assert message in said, f"{message!r} was to be said, and it was: {said}"


CHECKS: dict[str, Callable[[str], None]] = {
    check.__name__: check for check in (write, write_fp8, one_call, write_then_look, reserved, refused)
}

if __name__ == "__main__":
    for name, check in CHECKS.items():
        check("cpu")
        sys.stdout.write(f"{name}\n")
