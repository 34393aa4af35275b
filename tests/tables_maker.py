"""Small tables for tests, made of a physics that is known; and their JSON."""

from typing import Any

import numpy as np

from simulator.timing.tables.attention import decode_counts, prompt_counts
from simulator.timing.tables.products import WEIGHT_BYTES
from simulator.timing.tables.table_schema import SCHEMA, VERSION
from tests.profile_maker import axis, physics

M, N = (1, 16, 64, 256, 1024, 8192), (512, 1024, 4096, 16384, 65536)
SEQS, CONTEXT = (1.0, 8.0, 64.0, 512.0), (16.0, 128.0, 1024.0, 8192.0)
CHUNKS, EACH = (1.0, 4.0, 16.0), (16.0, 256.0, 2048.0, 8192.0)
DECODE = physics(6.0, {"keys": 2e-4}, {"chain": 1e-3}, p=2.0, items=0.02)
PROMPT = physics(8.0, {"pairs": 1e-6, "tokens": 1e-4}, {"chain": 0.01}, p=4.0, tiles=0.01)
HEADS = ((8, 2), (32, 2), (8, 8), (32, 8))


def product(precision: str) -> dict[str, Any]:
    """A surface of products in which the physics is all there is, bytes counted at the precision's width."""
    speed = 2.0 / WEIGHT_BYTES[precision]
    size = len(M) * len(N) ** 2
    return {
        "axes": [axis("m", *M), axis("n", *N), axis("k", *N)],
        "physics": physics(2.0, {"flops": 1.5e-3 / speed}, {"bytes": 3e-4}, p=4.0, depth=1e-4),
        "correction": [0] * size,
    }


def attention(kind: str, window: int = 0, kv: str = "bf16", head_dim: int = 128) -> dict[str, Any]:
    """Heads of one kind: their times are the physics and a factor for each (`factor`), with one hole."""
    first, second = (SEQS, CONTEXT) if kind == "decode" else (CHUNKS, EACH)
    names = ("seqs", "context") if kind == "decode" else ("chunks", "each")
    one, two = np.meshgrid(first, second, indexing="ij")
    tables = {}
    for heads, kv_heads in HEADS:
        us = _us(kind, one, two, heads, kv_heads, window) * factor(heads)
        values: list[int | None] = [round(1e3 * float(each)) for each in np.log(us).ravel()]
        values[-1] = None
        tables[f"{heads}/{kv_heads}"] = values
    return {
        "head_dim": head_dim, "kv": kv, "window": window, "axes": [axis(names[0], *first), axis(names[1], *second)],
        "physics": DECODE if kind == "decode" else PROMPT, "heads": tables,
    }  # fmt: skip


def factor(heads: float) -> float:
    """1 for 8 query heads, 4 for 32: the square root of 4 lies between, by the logarithm."""
    return heads / 8


def _us(kind: str, one: Any, two: Any, heads: int, kv_heads: int, window: int) -> Any:
    of = decode_counts(one, two, kv_heads, window) if kind == "decode" else prompt_counts(one, two, heads, window)
    from simulator.timing.profile.profile_schema import read_physics

    return np.asarray(read_physics(DECODE if kind == "decode" else PROMPT, "test").us(of))


def document() -> dict[str, Any]:
    """Tables in bf16 and fp8, heads of 128 without a window and with one of 512, all-reduces among two."""
    return {
        "schema": SCHEMA, "version": VERSION, "name": "h100-test-1.0", "gpu": "h100", "software": "test 1.0",
        "sources": [{"source": "made up"}], "left_out": {"products fp8_block": "nobody measured them"}, "errors": {},
        "products": {name: product(name) for name in ("bf16", "fp8")},
        "decode": [attention("decode"), attention("decode", 512), attention("decode", kv="fp8")],
        "prompt": [attention("prompt"), attention("prompt", 512), attention("prompt", kv="fp8")],
        "all_reduce": {"2": {"bytes": [1024, 1048576, 67108864], "us": [5.0, 12.0, 400.0]}},
    }  # fmt: skip
