"""Cases of the attention kernels: ragged batches over random pages, everything else poisoned with NaN.

Run as a program, each named group of cases is computed and its errors are printed as JSON, a line a case. Under
TRITON_INTERPRET=1, which has to be set before triton is loaded, that happens on the CPU.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

TOLERANCE = {"float32": 1e-6, "float16": 1e-3, "bfloat16": 2e-2}
"""Error of a row, its norm over that of the row's float64 result: the worst row counts."""


@dataclass(frozen=True, slots=True)
class Case:
    """`seqs` are (keys in all, tokens of this step). `cut`: chunks of so many keys, so that small cases are cut too."""

    name: str
    seqs: Sequence[tuple[int, int]]
    dtype: str = "float32"
    heads: int = 4
    kv_heads: int = 1
    head_dim: int = 64
    page: int = 16
    first: Sequence[int] | None = None
    cut: int | None = None
    table_once: bool = False
    fp8_kv: bool = False


DECODES = ((1, 1), (16, 1), (33, 1), (100, 1))
CHUNKS = ((40, 40), (70, 23), (37, 37))
MIXED = ((51, 1), (30, 30), (17, 1), (90, 20), (5, 5), (64, 0))

GROUPS: dict[str, tuple[Case, ...]] = {
    "types": (
        *(Case(f"decode {dtype}", DECODES, dtype) for dtype in TOLERANCE),
        *(Case(f"chunks {dtype}", CHUNKS, dtype) for dtype in TOLERANCE),
        *(Case(f"cut {dtype}", ((150, 1), (64, 1), (65, 1), (1, 1)), dtype, cut=32) for dtype in TOLERANCE),
        Case("mixed, cut, fp8 pages", MIXED, cut=32, fp8_kv=True),
        Case("decode bfloat16, fp8 pages", DECODES, "bfloat16", fp8_kv=True),
    ),
    "heads": (
        *(Case(f"mixed, group {group}", MIXED, heads=group * 2, kv_heads=2) for group in (1, 6, 8)),
        *(Case(f"mixed, group {group}, D 128", MIXED, "float16", group, 1, 128) for group in (1, 4, 6)),
        Case("decode, group 32", DECODES, "float16", 32, 1),
        Case("mixed, D 80", MIXED, "float16", head_dim=80),
        Case("chunks, D 256", CHUNKS, "float16", head_dim=256),
        Case("decode, D 256", ((40, 1), (9, 1)), "bfloat16", head_dim=256),
    ),
    "pages": (
        *(Case(f"mixed, pages of {page}", MIXED, "float16", page=page) for page in (1, 2, 5, 8, 32)),
        Case("left padding", ((20, 20), (31, 1), (40, 1), (50, 24)), "float16", first=(7, 17, 0, 33)),
        Case("padding, cut", ((20, 8), (131, 1), (97, 20)), "float16", first=(18, 21, 5), cut=32),
        Case("all padding", ((4, 4), (9, 9)), "float16", first=(2, 9)),
    ),
    "cuts": (
        Case("skewed", ((200, 1), *((3, 1),) * 6), "float16", cut=64),
        Case("prefill cut below the diagonal", ((130, 60), (96, 96)), "float16", heads=2, kv_heads=1, cut=32),
        Case("mixed, cut", MIXED, "bfloat16", heads=8, kv_heads=2, head_dim=128, cut=32),
        Case("a few tokens behind a prefix", ((90, 3), (75, 4), (33, 2)), "float16", cut=32),
        Case("whole tiles", ((64, 1), (128, 128), (32, 32)), "float16", cut=64),
    ),
    "table once": (
        Case("mixed, cut, table once", MIXED, cut=32, table_once=True),
        Case("padding, cut, table once", ((20, 8), (131, 1), (97, 20)), first=(18, 21, 5), cut=32, table_once=True),
        Case("pages of 5, table once", MIXED, "float16", page=5, cut=64, table_once=True),
        Case("decode, table once", DECODES, "bfloat16", table_once=True),
    ),
}


def worst_row(case: Case, device: str, seed: int = 0) -> float:
    """Compute the case and return its error; NaN where something poisoned was read or nothing was written."""
    import numpy as np
    import torch

    from gpu_backend.attention.paged import PagedAttention, StepSequences
    from gpu_backend.attention.worklist import Tilings, tilings
    from gpu_backend.weights import E4M3
    from gpu_backend.work import UNSCALED, KVScales
    from tools.kernel_bench.cases import reference_attention

    generator = torch.Generator().manual_seed(seed)
    dtype = getattr(torch, case.dtype)
    first = case.first or (0,) * len(case.seqs)
    context, query = (np.array(column, np.int64) for column in zip(*case.seqs, strict=True))
    pages = -(-context // case.page)
    blocks = int(pages.sum()) + 3
    kept, scales = (E4M3, KVScales(0.3, 0.07)) if case.fp8_kv else (dtype, UNSCALED)
    kv = torch.full((blocks, 2, case.kv_heads, case.page, case.head_dim), float("nan")).to(kept)
    shuffled = torch.randperm(blocks, generator=generator)
    tables = shuffled[-1].repeat(len(case.seqs), int(pages.max()) + 2)  # a poisoned page
    taken = 0
    for index, keys in enumerate(context):
        owned = shuffled[taken : taken + int(pages[index])]
        taken += len(owned)
        tables[index, : len(owned)] = owned
        places = torch.arange(first[index], keys)
        content = torch.randn((len(places), 2, case.kv_heads, case.head_dim), generator=generator)
        kv[owned[places // case.page], :, :, places % case.page] = content.to(kept)
    q = torch.randn((int(query.sum()), case.heads, case.head_dim), generator=generator).to(dtype)
    q, kv = q.to(device), kv.to(device)

    choice = tilings(case.head_dim, case.dtype, case.heads // case.kv_heads)
    if case.cut or case.table_once:
        cut = (replace(t, chunk=max(case.cut or t.chunk, t.block_n), table_once=case.table_once,
                       evict_first=case.table_once) for t in (choice.decode, choice.prefill))  # fmt: skip
        choice = Tilings(*cut)
    attention = PagedAttention(
        case.heads, case.kv_heads, case.head_dim, case.page, device, dtype,
        choice=choice, scale=0.11, fp8_kv=case.fp8_kv,
    )  # fmt: skip
    step = StepSequences(context, query, np.array(first), tables.numpy().astype(np.int32), np.empty(0, np.int32))
    out = torch.full_like(q, float("nan"))
    attention.look(q, kv, attention.prepare_step(step), out, scales=scales)
    expected = reference_attention(
        q, kv, tables.to(device), context.tolist(), query.tolist(), first=first, scale=0.11, kv_scales=scales
    )
    error = (out.double() - expected).norm(dim=-1)
    return float((error / expected.norm(dim=-1).clamp_min(1e-30)).where(expected.norm(dim=-1) > 0, error).max())


def main(group: str) -> None:
    """Print the errors of a group's cases."""
    for case in GROUPS[group]:
        start = time.process_time()
        error = worst_row(case, "cpu")
        seconds = round(time.process_time() - start, 2)
        sys.stdout.write(json.dumps({"name": case.name, "error": error, "seconds": seconds}) + "\n")


if __name__ == "__main__":
    main(sys.argv[1])
