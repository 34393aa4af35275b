"""Physics fitted to rows: non-negative coefficients, relative errors, a robust loss."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from calibration.solvers import nnls, robust_least_squares
from simulator.timing.profile.physics import Physics, Sum
from simulator.timing.profile.surface import Array

Features = Mapping[str, Array]

POWERS = (1.0, 1.5, 2.0, 4.0, 8.0)
"""Powers of the p-norm by which one resource hides another: tried in turn, the best is kept."""

ROBUST_FROM = 0.1  # relative errors beyond this count less and less (scipy's soft_l1)


MOST_ROWS = 4000
"""Most rows that a fit uses, drawn at random from a larger table: a handful of coefficients needs no more."""


@dataclass(frozen=True, slots=True)
class Shape:
    """The form of a kernel's physics, without coefficients: `terms` add up, `roofs` hide each other."""

    terms: tuple[str, ...]
    roofs: tuple[tuple[str, ...], ...]
    constant: bool = True

    @property
    def features(self) -> tuple[str, ...]:
        return (*self.terms, *(name for roof in self.roofs for name in roof))


def fit_physics(shape: Shape, features: Features, us: Array) -> Physics:
    """Find the physics of that form with the least robust relative error over the rows."""
    names = shape.features
    if len(us) > MOST_ROWS:
        some = np.sort(np.random.default_rng(0).permutation(len(us))[:MOST_ROWS])
        features, us = {name: np.asarray(features[name])[some] for name in names}, us[some]
    columns = np.column_stack([np.asarray(features[name], dtype=np.float64) for name in names])
    columns = np.column_stack([np.ones(len(us)) if shape.constant else np.zeros(len(us)), columns])
    start, _ = nnls(columns / us[:, None], np.ones(len(us)))
    # Coefficients in units in which each column's typical share of the time is 1.
    unit = np.array([1.0 / max(np.quantile(column / us, 0.9), 1e-12) for column in columns.T])
    seen = columns.any(axis=0)  # a feature that no row has gets no cost
    start, unit = np.where(seen, np.maximum(start / unit, 1e-3), 0.0), np.where(seen, unit, 0.0)
    best: tuple[float, Array, float] | None = None
    for p in POWERS if len(shape.roofs) > 1 else (1.0,):
        x, cost = robust_least_squares(_errors, start, ROBUST_FROM, (columns * unit, us, shape, p))
        if best is None or cost < best[0] * 0.999:
            best = cost, x * unit, p
    assert best is not None
    return _physics(shape, best[1], best[2])


def _errors(coefficients: Array, columns: Array, us: Array, shape: Shape, p: float) -> Array:
    parts = columns * coefficients
    total = parts[:, 0] + parts[:, 1 : 1 + len(shape.terms)].sum(axis=1)
    place = 1 + len(shape.terms)
    powers = np.zeros(len(us))
    for roof in shape.roofs:
        powers += np.maximum(parts[:, place : place + len(roof)].sum(axis=1), 1e-9) ** p
        place += len(roof)
    if shape.roofs:
        total = total + powers ** (1.0 / p)
    return np.asarray(np.log(np.maximum(total, 1e-9) / us))


def _physics(shape: Shape, coefficients: Array, p: float) -> Physics:
    values = [float(f"{value:.6g}") for value in coefficients]
    place = 1 + len(shape.terms)
    roofs: list[Sum] = []
    for roof in shape.roofs:
        roofs.append(tuple(zip(roof, values[place : place + len(roof)], strict=True)))
        place += len(roof)
    terms = tuple(zip(shape.terms, values[1 : 1 + len(shape.terms)], strict=True))
    return Physics(values[0], terms, tuple(roofs), p)
