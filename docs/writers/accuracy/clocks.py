"""The GPU's clock as kernel tables show it: the highest rate of its products, and kernels that were timed twice.

A product of matrices cannot exceed the tensor cores' rate at the clock of the moment; a datasheet's peak is that rate
at its rated boost clock. LLMServingSim's tables hold steps of equal decodes twice, in attention.csv and, later, as the
longest of a pair in skew.csv: a change of the clock in between shows in kernels that compute, not in those that read.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from calibration.rows import Table, read_columns
from simulator.hardware.gpus import find_gpu
from simulator.hardware.models import find_model
from simulator.timing.tables.products import layer_products
from tools.tables.profiles import Shipped, measured_together, read_shipped

Array = NDArray[np.float64]

FEWEST_KEYS = 60_000
"""Decodes alone of so many keys and more are bound by memory."""


@dataclass(frozen=True, slots=True)
class Clock:
    """A profile's highest product rate over the datasheet's peak, and by how much the same steps took longer later:
    the median of decodes alone that read, and of steps with prompts. Fractions."""

    name: str
    rate: float
    read: float
    computed: float


def read_clocks(root: Path) -> list[Clock]:
    """The clocks of the sources below `root` that timed steps twice, by the profile fitted to each."""
    return [clock_of(entry, root) for entry, _, _ in measured_together()]


def highest_rate(dense: Table, products: dict[str, tuple[int, int]]) -> float:
    """The highest rate (FLOP/s) of the products (n, k) by operator, over all rows of dense operators."""
    best = 0.0
    for op, (n, k) in products.items():
        here = dense["op"] == op
        if here.any():
            best = max(best, float((2.0 * dense["tokens"][here] * n * k / dense["us"][here]).max()) * 1e6)
    return best


def later(attention: Table, skew: Table) -> tuple[float, float]:
    """By how much steps took longer when timed again, of decodes alone that read and of steps with prompts: medians."""
    columns = ("chunk", "cached", "seqs", "context")
    first = dict(
        zip(zip(*(attention[name].tolist() for name in columns), strict=True), attention["us"].tolist(), strict=True)
    )
    read, computed = [], []
    for place, us in zip(
        zip(*(skew[name].tolist() for name in columns), strict=True), skew["us"].tolist(), strict=True
    ):
        if place not in first:
            continue
        ratio = us / first[place] - 1.0
        if place[0] > 0:
            computed.append(ratio)
        elif place[2] * place[3] >= FEWEST_KEYS:
            read.append(ratio)
    return float(np.median(read)), float(np.median(computed))


def clock_of(entry: Shipped, root: Path) -> Clock:
    """The clock of one source."""
    model, rows = find_model(entry.model), read_shipped(entry, root)
    products = dict(layer_products(model, entry.tensor_parallel))
    rate = highest_rate(rows.table("dense"), products) / (find_gpu(entry.gpu).bf16_tflops * 1e12)
    folder = root / "llmservingsim_profiles" / entry.folder / f"tp{entry.tensor_parallel}"
    columns = read_columns(folder, "skew", ("pc", "kp", "n", "kv_big", "t_max_us"))
    names = ("chunk", "cached", "seqs", "context", "us")
    again = {name: values.astype(np.float64) for name, values in zip(names, columns.values(), strict=True)}
    again["us"] = again["us"] / 3.0  # of three iterations
    return Clock(entry.name, rate, *later(rows.table("attention"), again))
