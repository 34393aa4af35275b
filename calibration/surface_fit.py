"""Fit surfaces to rows: first physics, then its residuals, on the measured grid or on a coarse one."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from calibration.physics_fit import Shape, fit_physics
from simulator.timing.profile.surface import Array, Surface, SurfaceAxis
from simulator.timing.tables.grid import fill, steadiness

DENSE = 0.5
"""From this share of the grid's cells on, the rows are a table: the correction is theirs, and holes are filled."""

CLAMP = 0.5  # a correction learnt from scattered rows is at most this much (log)
REACH = 1.2  # how far a scattered row's correction reaches, in log units of an axis (the length of a Gaussian process)
NOISE = 0.1  # variance of a scattered row's error, as a share of the correction's
MOST_SCATTERED = 600  # most scattered rows that the correction uses, taken evenly from all; the physics uses all


@dataclass(frozen=True, slots=True)
class Kernel:
    """A kind of surface: coordinates by axis name, counts for the physics, and the physics' form."""

    axes: tuple[str, ...]
    shape: Shape
    features: Callable[..., Mapping[str, Array]]
    """From the coordinates' arrays, in the order of the axes."""


def fit_surface(
    kernel: Kernel, coordinates: Sequence[Array], us: Array, grid: Sequence[Array] | None = None
) -> Surface:
    """Fit physics and correction to rows at these coordinates.

    Where the rows fill a grid it is used as a table; `grid` gives the values of the axes where only those are to be
    cells. Otherwise the correction is a smoothed one on a coarse grid that spans the rows.
    """
    features = kernel.features(*coordinates)
    physics = fit_physics(kernel.shape, features, us)
    residual = np.log(us / np.asarray(physics.us(features)))
    values = [np.unique(column) for column in coordinates] if grid is None else grid
    is_table = is_dense(coordinates, values)
    if not is_table:
        values = [_spanning(column) for column in coordinates]
    axes = tuple(SurfaceAxis(name, tuple(axis.tolist())) for name, axis in zip(kernel.axes, values, strict=True))
    if is_table:
        table = on_grid(values, coordinates, residual)
        correction = fill(table, steadiness(table))
    else:
        smooth = smooth_residual(axes, coordinates, np.clip(residual, -CLAMP, CLAMP))
        correction = np.clip(smooth, -CLAMP, CLAMP)
    return Surface(axes, physics, tuple(correction.ravel().tolist()))


def is_dense(coordinates: Sequence[Array], values: Sequence[Array]) -> bool:
    """Tell whether the rows fill half of the cells of a grid or more."""
    cells = 1
    for axis in values:
        cells *= len(axis)
    inside = np.ones(len(coordinates[0]), dtype=bool)
    for column, axis in zip(coordinates, values, strict=True):
        inside &= np.isin(column, axis)
    return bool(inside.sum() >= DENSE * cells)


def on_grid(axes: Sequence[Sequence[float] | Array], columns: Sequence[Array], values: Array) -> Array:
    """The means of the values at the cells of the axes, NaN at those of none; rows between the cells are left out."""
    shape = tuple(len(axis) for axis in axes)
    inside = np.ones(len(values), dtype=bool)
    places = []
    for column, axis in zip(columns, axes, strict=True):
        inside &= np.isin(column, axis)
        places.append(np.clip(np.searchsorted(axis, column), 0, len(axis) - 1))
    flat = np.ravel_multi_index(tuple(place[inside] for place in places), shape)
    size = int(np.prod(shape))
    with np.errstate(invalid="ignore"):
        mean: Array = np.bincount(flat, values[inside], minlength=size) / np.bincount(flat, minlength=size)
    return mean.reshape(shape)


def _spanning(column: Array) -> Array:
    """Up to nine of a column's values, the least and the most among them."""
    known = np.unique(column)
    return np.asarray(known[np.unique(np.round(np.linspace(0, len(known) - 1, min(len(known), 9))).astype(int))])


def smooth_residual(axes: Sequence[SurfaceAxis], coordinates: Sequence[Array], residual: Array) -> Array:
    """Smooth the residuals of scattered rows to all cells of the axes (flat, the last axis fastest)."""
    rows = np.column_stack([np.log1p(column / axis.unit) for column, axis in zip(coordinates, axes, strict=True)])
    mesh = np.meshgrid(*[np.asarray(axis.places) for axis in axes], indexing="ij")
    cells = np.column_stack([axis.ravel() for axis in mesh])
    some = np.unique(np.linspace(0, len(rows) - 1, min(len(rows), MOST_SCATTERED)).astype(int))
    rows, residual = rows[some], residual[some]
    weights = np.linalg.solve(_likeness(rows, rows) + NOISE * np.eye(len(rows)), residual)
    return np.asarray(_likeness(cells, rows) @ weights)


def _likeness(places: Array, rows: Array) -> Array:
    distance = (places**2).sum(axis=1)[:, None] + (rows**2).sum(axis=1)[None, :] - 2.0 * places @ rows.T
    return np.asarray(np.exp(-0.5 * np.maximum(distance, 0.0) / REACH**2))
