"""How far runs of real servers were from their predictions: quantiles by engine, tested on what was left out.

    {"schema": "batchlab residuals", "version": 2, "source": ..., "rows": n, "cells": m, "levels": [...],
     "strata": {"vllm": {"mean_tpot_ms": [...], ...}, ..., "any": {...}, "roofline": {...}},
     "spread": {"mean_tpot_ms": {"basis": {"measured": -0.1, ...}, ...}, ...},
     "wider": {"outside": 1.5}, "gpus": [...], "most": {"batch": n}}

A quantile is of log(measured / predicted) over the spread of its run, at one of the `levels`; a cell (engine, model,
GPU, precision) with many rows counts as some. The spread is e to the sum of what `spread` has of the run's traits: how
its price was come by, the kind of model, the load, the GPUs (`traits_of`). So an interval is narrow where errors of
such runs were small: conformal prediction with normalised residuals (Papadopoulos, Gammerman, Vovk, 2008; Lei et al.,
2018). A stratum is of an engine or of all runs. `docs.writers.accuracy` makes the file. There the quantiles are moved
away from their median until they hold so many of the runs of a model, a GPU, a version or an engine that they know
nothing of.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from math import exp
from pathlib import Path

import numpy as np

from simulator.errors import InputError
from simulator.hardware.models import Model
from simulator.metrics.summary import E2E, TPOT, TTFT

METRICS = (TTFT, TPOT, E2E)
WARM = "mean_ttft_ms, warm"
"""TTFT of servers that have compiled their kernels: without the measured runs that began before theirs had."""
ANY, ROOFLINE = "any", "roofline"
LOADS = (4, 16, 64, 256, 1024)
"""Prompt tokens a step of a full batch, between which spreads differ: with more, a run is less of decodes."""
FEW_GPUS, SOME_GPUS = 1, 4  # of a replica
OUTSIDE = "outside"  # among `wider`: beyond the measured envelope
SCHEMA, VERSION = "batchlab residuals", 2
FILE = Path(__file__).with_name("residuals.json")


@dataclass(frozen=True, slots=True)
class Residuals:
    """Quantiles of normalised log(measured / predicted) by stratum and metric, and the spreads by trait."""

    levels: tuple[float, ...]
    strata: Mapping[str, Mapping[str, Sequence[float]]]
    spread: Mapping[str, Mapping[str, Mapping[str, float]]]
    wider: Mapping[str, float]
    gpus: tuple[str, ...]
    most: Mapping[str, float]
    rows: int
    cells: int

    def factors(
        self, stratum: str, metric: str, coverage: float, traits: Mapping[str, str], times: float = 1.0
    ) -> tuple[float, float]:
        """Return the factors between which the real metric lies with this probability, given the predicted one.

        Those of the stratum if it is known, or of all runs, for a run with these traits, made so many times as wide.
        """
        quantiles = self.strata.get(stratum, self.strata[ANY])[metric]
        known = self.spread.get(metric, {})
        spread = exp(sum(known.get(trait, {}).get(value, 0.0) for trait, value in traits.items()))
        middle = float(np.interp(0.5, self.levels, quantiles))
        ends = [float(np.interp(level, self.levels, quantiles)) for level in (0.5 - coverage / 2, 0.5 + coverage / 2)]
        low, high = (exp(spread * (middle + times * (end - middle))) for end in ends)
        return low, high


def traits_of(basis: str, model: Model, gpus: int, load: float | None) -> dict[str, str]:
    """Return what the errors of such runs differ by.

    `gpus` are those in tensor parallel. `load` is the mean batch times prompt tokens over answers' tokens, None where
    it is not known.
    """
    kind = "latent attention" if model.kv_lora_rank else "experts" if model.experts else "dense"
    size = "one" if gpus <= FEW_GPUS else "some" if gpus <= SOME_GPUS else "many"
    found = {"basis": basis, "kind": kind, "gpus": size}
    return found if load is None else {**found, "load": str(sum(load > most for most in LOADS))}


@cache
def shipped_residuals() -> Residuals:
    """Read the residuals that come with batchlab. InputError where the file is damaged."""
    try:
        held = json.loads(FILE.read_text(encoding="utf-8"))
        assert (held["schema"], held["version"]) == (SCHEMA, VERSION)
        return Residuals(
            tuple(held["levels"]),
            held["strata"],
            held["spread"],
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
