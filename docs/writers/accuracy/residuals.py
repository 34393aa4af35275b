"""The residuals that come with batchlab (`scenarios.prediction.prediction`), made of scored rows, and their test.

An interval is a quantile of the residuals of other cells over their spread (`spread`), made wider until rows of a
model, a GPU, a version and an engine that were left out lie in it as often as they should (`fitted_times`). In the test
the rows that are left out take no part in that either: how much wider is found anew, by leaving out of the others.
"""

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from docs.writers.accuracy.served import GPUS
from docs.writers.accuracy.served_row import Row
from docs.writers.accuracy.served_score import Scored
from docs.writers.accuracy.spread import (
    FIELDS,
    GROUPED,
    Columns,
    Floats,
    columns,
    fitted_spread,
    quantiles,
    spreads,
    strata,
)
from scenarios.prediction.prediction import ANY, FILE, OUTSIDE, ROOFLINE, SCHEMA, VERSION

LEVELS = (0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.925, 0.95,
          0.97, 0.98, 0.99, 0.995)  # fmt: skip
COVERAGE = 0.9
AIM = 0.91
"""Rows that are left out should lie in an interval so often: a little more than `COVERAGE`, for what is fitted to 43
cells holds less of another (conformal prediction asks (n + 1) / n times as much of n)."""
TIMES = tuple(round(0.8 + 0.025 * step, 3) for step in range(57))  # up to 2.2
OUTSIDE_TIMES = 1.5
"""How much wider an interval is outside of the envelope: not tested, for no run lies there."""
KEYS: Mapping[str, Callable[[Row], str]] = {
    "model": lambda row: row.model.rpartition("/")[2],
    "GPU": lambda row: row.system,
    "version": lambda row: f"{row.engine} {row.version}",
    "engine": lambda row: row.engine,
}
"""What is left out in turn."""
Needed = Mapping[str, Mapping[str, tuple[Floats, Floats]]]
"""By way and group: how many times as wide intervals by others must be to hold each row, and log(high/low) as is."""


@dataclass(frozen=True, slots=True)
class Tested:
    """Coverage of the intervals of a metric on what was left out: in all, by group, and the median width (high/low)."""

    overall: float
    groups: Mapping[str, tuple[int, float]]
    width: float


def usable(scored: Iterable[Scored]) -> list[Scored]:
    """The rows that were priced."""
    return [each for each in scored if not each.refused and not each.contradiction and not math.isnan(each.e2e)]


def as_columns(scored: Sequence[Scored]) -> Columns:
    """The rows as columns, grouped by all that is left out in turn."""
    return columns(scored, KEYS)


def needed(known: Columns, unseen: Columns, metric: str) -> tuple[Floats, Floats]:
    """How many times as wide the intervals by the known rows must be to hold each unseen one; log(high/low) as is."""
    levels = (0.5 - COVERAGE / 2, 0.5, 0.5 + COVERAGE / 2)
    spread = fitted_spread(known, metric)
    plain = known.ratios[metric] / spreads(known, spread)
    ends = {name: quantiles(plain[some], known.cells[some], levels) for name, some in strata(known).items()}
    low, middle, high = np.array([ends.get(str(engine), ends[ANY]) for engine in unseen.engines]).T
    wide = spreads(unseen, spread)
    off = unseen.ratios[metric] / wide - middle
    side = np.where(off < 0.0, middle - low, high - middle)
    return np.abs(off) / np.maximum(side, 1e-9), wide * (high - low)


def needed_by(rows: Columns, metric: str) -> Needed:
    """What the rows of each group need of the intervals that know nothing of it."""
    found: dict[str, dict[str, tuple[Floats, Floats]]] = {}
    for way, names in rows.groups.items():
        groups = [str(name) for name in np.unique(names)]
        found[way] = {
            name: needed(rows.only(names != name), rows.only(names == name), metric)
            for name in groups
            if (names != name).any()
        }
    return found


def fitted_times(found: Needed) -> float:
    """The least factor by which intervals hold `AIM`, on the mean of the ways to leave out."""
    rows = [np.concatenate([times for times, _ in way.values()]) for way in found.values() if way]
    return next((times for times in TIMES if np.mean([(way <= times).mean() for way in rows]) >= AIM), TIMES[-1])


def coverages(rows: Columns, metric: str) -> dict[str, Tested]:
    """Coverage by way of leaving out. Rows that are left out take no part in the choice of the factor for them."""
    found = {}
    for way, groups in needed_by(rows, metric).items():
        names, held, widths = rows.groups[way], dict[str, Any](), []
        for name, (times, wide) in groups.items():
            chosen = fitted_times(needed_by(rows.only(names != name), metric))
            held[name] = times <= chosen
            widths.append(chosen * wide)
        shares = {name: (len(some), float(some.mean())) for name, some in held.items() if len(some) >= GROUPED}
        inside = float(np.concatenate(list(held.values())).mean())
        found[way] = Tested(inside, shares, math.exp(float(np.median(np.concatenate(widths)))))
    return found


def document(scored: Sequence[Scored], by_roofline: Sequence[Scored]) -> dict[str, Any]:
    """The JSON of the residuals of rows by measured kernels, and of some of them by roofline."""
    known, roofs = usable(scored), usable(by_roofline)
    everything, roof_rows = as_columns(known), as_columns(roofs)
    found: dict[str, dict[str, list[float]]] = {}
    spread, tested = dict[str, Any](), dict[str, Any]()
    for metric in FIELDS:
        rows = everything.of(metric)
        fitted, times = fitted_spread(rows, metric), fitted_times(needed_by(rows, metric))
        plain = rows.ratios[metric] / spreads(rows, fitted)
        parts = {name: (plain[some], rows.cells[some]) for name, some in strata(rows).items()}
        if roofs:
            of_roof = roof_rows.of(metric)
            parts[ROOFLINE] = of_roof.ratios[metric], of_roof.cells
        for name, (values, cells) in parts.items():
            found.setdefault(name, {})[metric] = _moved(quantiles(values, cells, LEVELS), times)
        spread[metric] = {trait: {value: round(log, 3) for value, log in of.items()} for trait, of in fitted.items()}
        tested[metric] = {way: _as_json(each) for way, each in coverages(rows, metric).items()}
    return {
        "schema": SCHEMA,
        "version": VERSION,
        "source": "aiconfigurator-core 0.12.0, half of its sample of runs of servers; Apache-2.0",
        "rows": len(known),
        "cells": len({each.row.cell for each in known}),
        "levels": list(LEVELS),
        "strata": found,
        "spread": spread,
        "wider": {OUTSIDE: OUTSIDE_TIMES},
        "gpus": sorted({GPUS.get(each.row.system, each.row.system) for each in known}),
        "most": {"batch": max(each.batch for each in known)},
        "tested": tested,
    }


def _moved(found: Floats, times: float) -> list[float]:
    middle = float(np.interp(0.5, LEVELS, found))
    return [round(middle + times * (float(value) - middle), 4) for value in found]


def _as_json(found: Tested) -> dict[str, Any]:
    return {
        "coverage": round(found.overall, 3),
        "width": round(found.width, 3),
        "groups": {name: [count, round(share, 3)] for name, (count, share) in found.groups.items()},
    }


def write(scored: Sequence[Scored], by_roofline: Sequence[Scored]) -> dict[str, Any]:
    """Write the file that comes with batchlab, and return what it holds."""
    found = document(scored, by_roofline)
    FILE.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    return found
