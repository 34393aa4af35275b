"""Rows of scored runs as columns, and the spread of their residuals by trait.

Errors differ in size by more than the engine: by how a price was come by, by the kind of model, the load, the GPUs. A
ridge regression of log |residual| on these gives each value a factor, drawn towards 1 by `SHRUNK` rows, as an
empirical-Bayes mean of groups is. Quantiles of residuals over their spread are then one for all runs of an engine.
"""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from docs.writers.accuracy.floor import COLD, cause_of
from docs.writers.accuracy.served import MODELS
from docs.writers.accuracy.served_score import Scored
from scenarios.prediction.prediction import ANY, BASES, EXTRAPOLATED, MEASURED, METRICS, WARM, traits_of
from simulator.hardware.models import Model, custom_model

BATCHES = (8.5, 32.5, 128.5)  # mean batches of a replica, between which errors differ
MOST = 40  # of a cell's rows count
SHRUNK = 30.0
SMALLEST = 0.02  # smaller residuals say no more: they are as small as by chance
GROUPED, CELLS = 100, 8
"""A stratum is of so many rows and cells at least: fewer say how rows of a cell differ, not how cells do."""
LEAST_WIDER = 1.1
"""An interval is at least so much wider than where the kernels were measured, from `EXTRAPOLATED` on."""
TRAITS = ("basis", "kind", "load", "gpus")
"""The traits of which a spread is made. Traits, `SHRUNK` and `SMALLEST` were chosen once, on all rows."""
FIELDS = dict(zip((*METRICS, WARM), ("ttft", "tpot", "e2e", "ttft"), strict=True))
Floats = NDArray[np.float64]
Spread = Mapping[str, Mapping[str, float]]


@dataclass(frozen=True, slots=True)
class Columns:
    """Rows as columns: log(measured / predicted) by metric, cell and engine, traits, and groups by what is left out.

    A ratio is NaN where the row says nothing of the metric.
    """

    ratios: Mapping[str, Floats]
    cells: NDArray[Any]
    engines: NDArray[Any]
    traits: Sequence[tuple[str, str]]
    marks: Floats  # rows x traits
    groups: Mapping[str, NDArray[Any]]

    def __len__(self) -> int:
        return len(self.cells)

    def only(self, kept: NDArray[np.bool_]) -> "Columns":
        """Some of the rows."""
        ratios = {metric: values[kept] for metric, values in self.ratios.items()}
        groups = {name: values[kept] for name, values in self.groups.items()}
        return Columns(ratios, self.cells[kept], self.engines[kept], self.traits, self.marks[kept], groups)

    def of(self, metric: str) -> "Columns":
        """The rows that say something of a metric."""
        return self.only(~np.isnan(self.ratios[metric]))


def log_ratios(scored: Sequence[Scored], metric: str) -> Floats:
    """log(measured / predicted) of each row; of servers that were cold NaN, where the metric is of warm ones."""
    errors = np.array([float(getattr(each, FIELDS[metric])) for each in scored])
    if metric == WARM:
        errors[[cause_of(each.row) == COLD for each in scored]] = np.nan
    return np.asarray(-np.log1p(errors))


def columns(scored: Sequence[Scored], groups: Mapping[str, Any]) -> Columns:
    """The rows as columns, grouped by each key of a row."""
    traits = [row_traits(each) for each in scored]
    known = sorted({pair for each in traits for pair in each.items()})
    marks = [[float(each.get(trait) == value) for trait, value in known] for each in traits]
    return Columns(
        {metric: log_ratios(scored, metric) for metric in FIELDS},
        np.array([each.row.cell for each in scored]),
        np.array([each.row.engine for each in scored]),
        known,
        np.array(marks, dtype=float).reshape(len(scored), len(known)),
        {name: np.array([key(each.row) for each in scored]) for name, key in groups.items()},
    )


def row_traits(scored: Scored) -> dict[str, str]:
    """The traits of a row, as those of a run."""
    row = scored.row
    found = traits_of(scored.basis, _model(row.model), row.tensor_parallel, scored.batch * row.isl / row.osl)
    found["batch"] = str(sum(scored.batch > most for most in BATCHES))
    return found if row.model in MODELS else {name: value for name, value in found.items() if name != "kind"}


@cache
def _model(name: str) -> Model:
    return custom_model(MODELS.get(name, {"base": "llama-3.1-8b"}))


def weights(cells: NDArray[Any]) -> Floats:
    """The weight of each row: a cell with many rows counts as `MOST` of them."""
    _, place, count = np.unique(cells, return_inverse=True, return_counts=True)
    return np.asarray(np.minimum(1.0, MOST / count[place]))


def quantiles(values: Floats, cells: NDArray[Any], levels: Sequence[float]) -> Floats:
    """Weighted quantiles."""
    weight, order = weights(cells), np.argsort(values)
    weight = weight[order]
    places = (np.cumsum(weight) - weight / 2) / weight.sum()
    return np.asarray(np.interp(levels, places, values[order]))


def strata(rows: Columns) -> dict[str, NDArray[np.bool_]]:
    """Which rows are of each stratum: an engine's where they are many enough, and all."""
    found = {ANY: np.ones(len(rows), dtype=bool)}
    for engine in np.unique(rows.engines):
        some = rows.engines == engine
        if some.sum() >= GROUPED and len(np.unique(rows.cells[some])) >= CELLS:
            found[str(engine)] = some
    return found


def fitted_spread(rows: Columns, metric: str) -> Spread:
    """The log of the factor of each trait's values; by basis never less than that of a surer one.

    Engines and all traits take part in the fit, so that none stands for another; an engine's quantiles are its own.
    """
    values, known = rows.ratios[metric], strata(rows)
    middles = {name: float(quantiles(values[some], rows.cells[some], [0.5])[0]) for name, some in known.items()}
    off = np.abs(values - np.array([middles.get(str(engine), middles[ANY]) for engine in rows.engines]))
    engines = np.unique(rows.engines)
    marks = np.hstack([rows.marks, (rows.engines[:, None] == engines).astype(float)])
    size, weight = np.log(np.maximum(off, SMALLEST)), weights(rows.cells)
    size -= np.average(size, weights=weight)
    normal = marks.T @ (weight[:, None] * marks) + SHRUNK * np.eye(marks.shape[1])
    effects = np.linalg.solve(normal, marks.T @ (weight * size))
    found: dict[str, dict[str, float]] = defaultdict(dict)
    for (trait, value), effect in zip(rows.traits, effects, strict=False):
        if trait in TRAITS:
            found[trait][value] = float(effect)
    return {**found, "basis": _rising(found["basis"])} if "basis" in found else found


def _rising(effects: Mapping[str, float]) -> dict[str, float]:
    """Effects of the bases, each at least that of a surer one."""
    least, found = effects.get(MEASURED, 0.0), dict[str, float]()
    for basis in BASES:
        if basis == EXTRAPOLATED:
            least = max(least, effects.get(MEASURED, 0.0) + math.log(LEAST_WIDER))
        least = max(least, effects.get(basis, least))
        found[basis] = least
    return found


def spreads(rows: Columns, spread: Spread) -> Floats:
    """The spread of each row."""
    effects = [spread.get(trait, {}).get(value, 0.0) for trait, value in rows.traits]
    return np.asarray(np.exp(rows.marks @ np.array(effects, dtype=float)))
