"""How far runs of real servers were from their predictions: quantiles by engine, tested on what was left out.

    {"schema": "batchlab residuals", "version": 1, "source": ..., "rows": n, "cells": m, "levels": [...],
     "strata": {"vllm, up to 32": {"mean_tpot_ms": [...], ...}, ..., "any": {...}, "roofline": {...}},
     "wider": {"measured": 1.0, ...}, "gpus": [...], "most": {"concurrency": n, "context": n}}

A quantile is of log(measured / predicted), at one of the `levels`; a cell (engine, model, GPU, precision) with many
rows counts as some. A stratum is of an engine, of all with batches of a size, or both. `docs.writers.accuracy` makes
the file. There the quantiles are moved away from their median until they hold so many of the runs of a model, a GPU, a
version or an engine that they know nothing of; `wider` is by how much more for prices of a basis.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from math import exp
from pathlib import Path

import numpy as np

from simulator.errors import InputError

METRICS = ("mean_ttft_ms", "mean_tpot_ms", "mean_e2el_ms")
ANY, ROOFLINE = "any", "roofline"
BATCHES = (8.5, 32.5, 128.5)
"""Mean batches of a replica up to which a stratum goes: the more requests at once, the further off a prediction is."""
OUTSIDE = "outside"  # among `wider`: beyond the measured envelope
SCHEMA, VERSION = "batchlab residuals", 1
FILE = Path(__file__).with_name("residuals.json")


@dataclass(frozen=True, slots=True)
class Residuals:
    """Quantiles of log(measured / predicted) by stratum and metric, and the factors that make them wider."""

    levels: tuple[float, ...]
    strata: Mapping[str, Mapping[str, Sequence[float]]]
    wider: Mapping[str, float]
    gpus: tuple[str, ...]
    most: Mapping[str, float]
    rows: int
    cells: int

    def factors(self, strata: Sequence[str], metric: str, coverage: float, bases: Sequence[str]) -> tuple[float, float]:
        """Return the factors between which the real metric lies with this probability, given the predicted one.

        Those of the first of the `strata` that is known, or of all runs.
        """
        stratum = next((name for name in strata if name in self.strata), ANY)
        log_ratio = self.strata[stratum][metric]
        middle = float(np.interp(0.5, self.levels, log_ratio))
        times = 1.0
        for basis in bases:
            times *= self.wider.get(basis, 1.0)
        ends = [float(np.interp(level, self.levels, log_ratio)) for level in (0.5 - coverage / 2, 0.5 + coverage / 2)]
        low, high = (exp(middle + times * (end - middle)) for end in ends)
        return low, high


def strata_names(kernels: str, batch: float) -> tuple[str, ...]:
    """Return the strata of a run by an engine's kernels with a mean batch, the narrowest first."""
    most = next((size for size in BATCHES if batch <= size), None)
    words = f"above {BATCHES[-1]:.0f}" if most is None else f"up to {most:.0f}"
    return f"{kernels}, {words}", kernels, f"{ANY}, {words}", ANY


@cache
def shipped_residuals() -> Residuals:
    """Read the residuals that come with batchlab. InputError where the file is damaged."""
    try:
        held = json.loads(FILE.read_text(encoding="utf-8"))
        assert (held["schema"], held["version"]) == (SCHEMA, VERSION)
        return Residuals(
            tuple(held["levels"]),
            held["strata"],
            held["wider"],
            tuple(held["gpus"]),
            held["most"],
            int(held["rows"]),
            int(held["cells"]),
        )
    except (OSError, ValueError, KeyError, AssertionError) as error:
        raise InputError(f"the residuals of predictions cannot be read: {error}", file=str(FILE)) from None


def check_coverage(coverage: float) -> float:
    """Return a probability that an interval can have. InputError for any other."""
    least, most = 0.5, 0.98
    if not least <= coverage <= most:
        raise InputError(f"a confidence is from {least} to {most}, not {coverage:g}", file="--confidence")
    return coverage
