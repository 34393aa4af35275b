"""Kernels that follow a law known to the tests, as rows and as the files of public sources."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import yaml

from calibration.rows import KernelRows, Table, make_table

CONTEXTS = (16, 64, 256, 1024, 4096)
SEQS = (1, 4, 16, 64)
CHUNKS = (16, 64, 256, 1024)
TOKENS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048)
ITERATIONS = 3


def decode_us(seqs: float, context: float) -> float:
    return float(8.0 + 0.1 * seqs + 0.003 * seqs * context + 0.01 * context)


def joint_us(chunk: float, cached: float, seqs: float, context: float) -> float:
    pairs = chunk * cached + chunk * (chunk + 1) / 2
    tiles = (1 + seqs) * -(-chunk // 128)
    return float(6.0 + 0.2 * tiles + 1e-4 * pairs + 0.005 * seqs * context + 0.01 * max(chunk + cached, context))


def attention() -> Table:
    rows: list[tuple[float, float, float, float, float]] = []
    rows += [(0, 0, n, kv, decode_us(n, kv)) for n in SEQS for kv in CONTEXTS]
    rows += [(c, kp, 0, 0, joint_us(c, kp, 0, 0)) for c in CHUNKS for kp in (0, *CONTEXTS)]
    rows += [
        (c, kp, n, kv, joint_us(c, kp, n, kv)) for c in CHUNKS for kp in (0, *CONTEXTS) for n in SEQS for kv in CONTEXTS
    ]
    names = ("chunk", "cached", "seqs", "context", "us")
    return make_table("attention", dict(zip(names, np.array(rows).T, strict=True)))


def dense(ops: Sequence[str]) -> Table:
    rows = [(op, tokens, (i + 1) * (20.0 + 0.1 * tokens)) for i, op in enumerate(ops) for tokens in TOKENS]
    columns = list(zip(*rows, strict=True))
    return make_table("dense", dict(zip(("op", "tokens", "us"), columns, strict=True)))


def sampled() -> Table:
    rows = [(op, n, us + 0.2 * n) for op, us in (("lm_head", 300.0), ("sampler", 25.0)) for n in SEQS]
    return make_table("sampled", dict(zip(("op", "seqs", "us"), zip(*rows, strict=True), strict=True)))


def skew() -> Table:
    rows = []
    for chunk in (0, 64):
        for n in (4, 16, 64):
            for long_seqs in (1, 2, n // 2, n - 1):
                for short in (128, 512):
                    mean = (long_seqs * 4 * short + (n - long_seqs) * short) / n
                    extra = (0.02 if chunk else 0.01) * (4 * short - mean)
                    rows.append((n, long_seqs, short, 4 * short, chunk, 0, decode_us(n, mean), extra))
    columns = list(np.array(rows).T)
    columns[-1] = columns[-1] + columns[-2]
    names = ("seqs", "long_seqs", "short", "long", "chunk", "cached", "equal_us", "us")
    return make_table("skew", dict(zip(names, columns, strict=True)))


def rows() -> KernelRows:
    ops = ("qkv", "output_projection", "gate_up", "down", "norm", "rope", "activation", "embedding", "final_norm")
    tables = {"dense": dense(ops), "sampled": sampled(), "attention": attention(), "skew": skew()}
    return KernelRows(
        gpu="h200", model="llama-3.1-8b", software="made up", sources=({"source": "tests"},), tables=tables
    )


def write_llmservingsim(folder: Path) -> Path:
    """The same rows as LLMServingSim would write them."""
    from calibration.sources import OPS, TWICE

    theirs = {ours: name for name, ours in OPS.items()}
    made = rows()
    inner = folder / "bf16" / "tp1"
    inner.mkdir(parents=True)
    meta = {"gpu": "NVIDIA H200", "model": "meta-llama/Llama-3.1-8B", "vllm_version": "0.19.0", "variant": "bf16"}
    (folder / "bf16" / "meta.yaml").write_text(yaml.dump({**meta, "measurement_iterations": ITERATIONS}))
    table = made.table("dense")
    lines = ["layer,tokens,time_us"]
    for op, tokens, us in zip(table["op"], table["tokens"], table["us"], strict=True):
        lines.append(f"{theirs[str(op)]},{tokens:g},{float(us) / (2 if op in TWICE else 1)!r}")
    (inner / "dense.csv").write_text("\n".join(lines) + "\n")
    _csv(inner / "per_sequence.csv", "layer,sequences,time_us", made.table("sampled"), ("op", "seqs", "us"))
    names = ("chunk", "cached", "seqs", "context", "us")
    header = "prefill_chunk,kv_prefill,n_decode,kv_decode,time_us"
    _csv(inner / "attention.csv", header, made.table("attention"), names)
    summed = dict(made.table("skew"))
    summed |= {name: summed[name] * ITERATIONS for name in ("equal_us", "us")}
    columns = ("seqs", "long_seqs", "short", "long", "chunk", "cached", "equal_us", "us")
    _csv(inner / "skew.csv", "n,nb,kvs,kv_big,pc,kp,t_mean_us,t_skew_us", summed, columns)
    return folder / "bf16"


def _csv(path: Path, header: str, table: Table, names: Sequence[str]) -> None:
    lines = [header]
    for values in zip(*[table[name].tolist() for name in names], strict=True):
        lines.append(",".join(value if isinstance(value, str) else repr(float(value)) for value in values))
    path.write_text("\n".join(lines) + "\n")


def without(made: KernelRows, kind: str) -> KernelRows:
    return replace(made, tables={name: table for name, table in made.tables.items() if name != kind})
