"""The residuals that come with batchlab (`scenarios.prediction.residuals`), made of scored rows, and their test.

An interval is a quantile of the residuals of other cells, made wider until rows of a model, a GPU, a version and an
engine that were left out lie in it as often as they should (`fitted_times`). A cell with many rows counts as
`MOST` of them.
"""

import json
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from docs.writers.accuracy.served import GPUS, Row
from docs.writers.accuracy.served_score import Scored
from scenarios.prediction.basis import BASES, EXTRAPOLATED, MEASURED
from scenarios.prediction.residuals import ANY, FILE, METRICS, OUTSIDE, ROOFLINE, SCHEMA, VERSION, strata_names

LEVELS = (0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.925, 0.95,
          0.97, 0.98, 0.99, 0.995)  # fmt: skip
MOST = 40
FEWEST = 50  # rows of a basis, for a width of its own
GROUPED = 100  # rows: a group of so many has a coverage of its own in the test
CELLS = 8
"""A stratum is of so many cells and of `GROUPED` rows at least. Fewer say how rows of a cell differ, not how cells do:
an interval by them misses the cells of a client or of a version that was left out."""
COVERAGE = 0.9
WORST, TOO_OFTEN = 0.8, 0.93
TIMES = tuple(round(0.8 + 0.025 * step, 3) for step in range(57))  # up to 2.2
OUTSIDE_TIMES = 1.5
"""How much wider an interval is outside of the envelope: not tested, for no run lies there."""
LEAST_WIDER = {EXTRAPOLATED: 1.1}
"""An interval is at least so much wider than where the kernels were measured."""
FIELDS = dict(zip(METRICS, ("ttft", "tpot", "e2e"), strict=True))
KEYS: Mapping[str, Callable[[Row], str]] = {
    "model": lambda row: row.model.rpartition("/")[2],
    "GPU": lambda row: row.system,
    "version": lambda row: f"{row.engine} {row.version}",
    "engine": lambda row: row.engine,
}
"""What is left out in turn."""
Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Tested:
    """Coverage of the intervals of a metric on what was left out: in all, by group, and the median width (high/low)."""

    overall: float
    groups: Mapping[str, tuple[int, float]]
    width: float


def usable(scored: Iterable[Scored]) -> list[Scored]:
    """The rows that were priced."""
    return [each for each in scored if not each.refused and not each.contradiction and not math.isnan(each.e2e)]


def log_ratios(scored: Sequence[Scored], metric: str) -> Floats:
    """log(measured / predicted) of each row."""
    errors = np.array([float(getattr(each, FIELDS[metric])) for each in scored])
    return np.asarray(-np.log1p(errors))


def quantiles(scored: Sequence[Scored], metric: str, levels: Sequence[float]) -> Floats:
    """Weighted quantiles of the residuals."""
    cells: dict[str, int] = defaultdict(int)
    for each in scored:
        cells[each.row.cell] += 1
    weights = np.array([min(1.0, MOST / cells[each.row.cell]) for each in scored])
    values = log_ratios(scored, metric)
    known = ~np.isnan(values)
    order = np.argsort(values[known])
    ordered, weight = values[known][order], weights[known][order]
    places = (np.cumsum(weight) - weight / 2) / weight.sum()
    return np.asarray(np.interp(levels, places, ordered))


def strata_of(scored: Sequence[Scored]) -> dict[str, list[Scored]]:
    """The rows by stratum, where these are many enough: each engine's, those of a mean batch, both, and all."""
    found: dict[str, list[Scored]] = defaultdict(list)
    for each in scored:
        for name in dict.fromkeys((*strata_names(each.row.engine, each.batch), *strata_names(ANY, each.batch))):
            found[name].append(each)
    cells = {name: len({each.row.cell for each in some}) for name, some in found.items()}
    return {
        name: some for name, some in found.items() if (len(some) >= GROUPED and cells[name] >= CELLS) or name == ANY
    }


def _needed(known: Sequence[Scored], unseen: Sequence[Scored], metric: str) -> tuple[Floats, Floats]:
    """How many times as wide the intervals by the known rows must be to hold each unseen one; log(high/low) as is."""
    levels = (0.5 - COVERAGE / 2, 0.5, 0.5 + COVERAGE / 2)
    ends = {name: quantiles(some, metric, levels) for name, some in strata_of(known).items()}
    names = [strata_names(each.row.engine, each.batch) for each in unseen]
    low, middle, high = np.array([ends[next(name for name in of if name in ends)] for of in names]).T
    off = log_ratios(unseen, metric) - middle
    side = np.where(off < 0.0, middle - low, high - middle)
    return np.abs(off) / np.maximum(side, 1e-9), high - low


def _left_out(scored: Sequence[Scored], metric: str, key: Callable[[Row], str]) -> dict[str, tuple[Floats, Floats]]:
    """What the rows of each group by `key` need of the intervals that know nothing of it."""
    groups: dict[str, list[Scored]] = defaultdict(list)
    for each in scored:
        groups[key(each.row)].append(each)
    return {
        name: _needed([each for each in scored if key(each.row) != name], some, metric)
        for name, some in sorted(groups.items())
    }


def left_out(scored: Sequence[Scored], metric: str, key: Callable[[Row], str], times: float) -> Tested:
    """Coverage of rows whose group by `key` the intervals know nothing of."""
    found = _left_out(scored, metric, key)
    held = {name: needed <= times for name, (needed, _) in found.items()}
    widths = np.concatenate([wide for _, wide in found.values()])
    shares = {name: (len(some), float(some.mean())) for name, some in held.items() if len(some) >= GROUPED}
    inside = float(np.concatenate(list(held.values())).mean())
    return Tested(inside, shares, math.exp(times * float(np.median(widths))))


def fitted_times(scored: Sequence[Scored], metric: str) -> float:
    """The least factor by which intervals hold what they should, on the mean of the four ways to leave out, and each
    group of `GROUPED` rows at least `WORST`. Where that would hold more than `TOO_OFTEN`, the mean alone counts.
    """
    ways = [_left_out(scored, metric, key) for key in KEYS.values()]
    rows = [np.concatenate([needed for needed, _ in way.values()]) for way in ways]
    groups = [needed for way in ways for needed, _ in way.values() if len(needed) >= GROUPED]
    means = {times: float(np.mean([(way <= times).mean() for way in rows])) for times in TIMES}
    enough = [times for times in TIMES if means[times] >= COVERAGE] or [TIMES[-1]]
    held = (times for times in enough if all((group <= times).mean() >= WORST for group in groups))
    return next((times for times in held if means[times] <= TOO_OFTEN), enough[0])


def document(scored: Sequence[Scored], by_roofline: Sequence[Scored]) -> dict[str, Any]:
    """The JSON of the residuals of rows by measured kernels, and of some of them by roofline."""
    known, roofs = usable(scored), usable(by_roofline)
    times = {metric: fitted_times(known, metric) for metric in METRICS}
    strata = {**strata_of(known), **({ROOFLINE: roofs} if roofs else {})}
    tested = {
        metric: {name: _as_json(left_out(known, metric, key, times[metric])) for name, key in KEYS.items()}
        for metric in METRICS
    }
    return {
        "schema": SCHEMA,
        "version": VERSION,
        "source": "aiconfigurator-core 0.12.0, half of its sample of runs of servers; Apache-2.0",
        "rows": len(known),
        "cells": len({each.row.cell for each in known}),
        "levels": list(LEVELS),
        "strata": {
            name: {metric: _moved(quantiles(some, metric, LEVELS), times[metric]) for metric in METRICS}
            for name, some in strata.items()
        },
        "wider": {**_wider(known, times), OUTSIDE: OUTSIDE_TIMES},
        "gpus": sorted({GPUS.get(each.row.system, each.row.system) for each in known}),
        "most": {"batch": max(each.batch for each in known)},
        "tested": tested,
    }


def _moved(found: Floats, times: float) -> list[float]:
    middle = float(np.interp(0.5, LEVELS, found))
    return [round(middle + times * (float(value) - middle), 4) for value in found]


def _wider(known: Sequence[Scored], times: Mapping[str, float]) -> dict[str, float]:
    """How much wider the interval of TPOT must be for rows of a basis than for measured ones; never less than for a
    surer basis.
    """
    needed: dict[str, float] = {}
    for basis in BASES:
        some = [each for each in known if each.basis == basis]
        if len(some) >= FEWEST:
            needed[basis] = float(np.quantile(_needed(known, some, METRICS[1])[0], COVERAGE))
    first = needed.get(MEASURED, times[METRICS[1]])
    found, least = {}, 1.0
    for basis in BASES:
        least = max(least, needed.get(basis, 0.0) / first, LEAST_WIDER.get(basis, 1.0))
        found[basis] = round(least, 3)
    return found


def _as_json(tested: Tested) -> dict[str, Any]:
    return {
        "coverage": round(tested.overall, 3),
        "width": round(tested.width, 3),
        "groups": {name: [count, round(share, 3)] for name, (count, share) in tested.groups.items()},
    }


def write(scored: Sequence[Scored], by_roofline: Sequence[Scored]) -> dict[str, Any]:
    """Write the file that comes with batchlab, and return what it holds."""
    found = document(scored, by_roofline)
    FILE.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    return found
