"""Impossible rows, faster than the GPU's memory or arithmetic allows: taken out, counted and listed.

Public tables hold some: pages read again from the L2 cache, broken timers.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from calibration.rows import KernelRows, Table
from simulator.hardware.gpus import Gpu
from simulator.hardware.models import Model
from simulator.timing.profile.surface import Array

TOLERANCE = 1.03  # a row may exceed the peak by this factor: datasheets round, and clocks boost
LISTED = 20  # most rejected rows that are described; all are counted


@dataclass(frozen=True, slots=True)
class Rejected:
    """Rows of a kind that were taken out: `count` `of` all, and the first of them in words."""

    kind: str
    count: int
    of: int
    listed: tuple[str, ...]

    def document(self) -> dict[str, object]:
        return {"kind": self.kind, "count": self.count, "of": self.of, "first": list(self.listed)}


def reject_impossible(rows: KernelRows, gpu: Gpu, model: Model | None) -> tuple[KernelRows, list[Rejected]]:
    """Take out the rows that are faster than the GPU's peaks allow; return the rest, and what was taken out.

    Matrix products are checked against both peaks. Attention is where the model is known: its KV heads say how many
    bytes a key has. Other kinds are not checked.
    """
    rejected = []
    for kind, table in rows.tables.items():
        least = _least_us(kind, table, gpu, model, rows.tensor_parallel)
        if least is None:
            continue
        impossible = table["us"] * TOLERANCE < least
        if impossible.any():
            rejected.append(_describe(kind, table, impossible, least))
            rows = rows.keep(kind, ~impossible)
    return rows, rejected


def _least_us(kind: str, table: Table, gpu: Gpu, model: Model | None, ranks: int) -> Array | None:
    """The least microseconds that each row can take."""
    per_byte = 1e6 / (gpu.bandwidth_gb_s * 1e9)
    per_flop = 1e6 / (gpu.bf16_tflops * 1e12)
    if kind == "gemm":
        m, n, k = table["m"], table["n"], table["k"]
        return np.asarray(np.maximum(2.0 * m * n * k * per_flop, 2.0 * (n * k + m * k + m * n) * per_byte))
    if kind == "attention" and model is not None and not model.kv_lora_rank:
        key_bytes = 2 * model.local_kv_heads(ranks) * model.head_dim * model.kv_dtype_bytes
        keys = table["seqs"] * table["context"] + table["chunks"] * np.where(
            table["chunk"] > 0, table["cached"] + table["chunk"], 0.0
        )
        pairs = table["chunks"] * table["chunk"] * (table["cached"] + 0.5 * (table["chunk"] + 1.0))
        flops = 4.0 * (model.heads // ranks) * model.head_dim * (pairs + table["seqs"] * table["context"])
        return np.asarray(np.maximum(keys * key_bytes * per_byte, flops * per_flop))
    return None


def _describe(kind: str, table: Table, impossible: NDArray[np.bool_], least: Array) -> Rejected:
    listed = []
    for row in np.flatnonzero(impossible)[:LISTED]:
        where = ", ".join(f"{name} {values[row]:g}" for name, values in table.items() if name not in ("us", "op"))
        listed.append(f"{where}: {table['us'][row]:.4g} us, where {least[row]:.4g} is the least that the GPU could")
    return Rejected(kind, int(impossible.sum()), len(impossible), tuple(listed))
