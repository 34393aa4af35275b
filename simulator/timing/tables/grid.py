"""Tables with holes: what is not known takes the mean of its neighbours, from the edges of the known inwards."""

from collections.abc import Sequence

import numpy as np

from simulator.timing.profile.surface import Array

TINY = 1e-8  # values closer than 1e-4 are equal


def steadiness(table: Array) -> list[float]:
    """Weight of neighbours along each axis: one over the mean square of their differences."""
    found = []
    for axis in range(table.ndim):
        steps = np.diff(table, axis=axis) ** 2
        steps = steps[~np.isnan(steps)]
        found.append(1.0 / max(float(steps.mean()), TINY) if len(steps) else 1.0 / TINY)
    return found


def fill(table: Array, weights: Sequence[float] | None = None) -> Array:
    """The table with its holes (NaN) filled; 0 where nothing is known. Without weights all neighbours count alike."""
    if np.isnan(table).all():
        return np.zeros_like(table)
    table = table.copy()
    weights = [1.0] * table.ndim if weights is None else weights
    while np.isnan(table).any():
        total, count = np.zeros(table.shape), np.zeros(table.shape)
        for axis in range(table.ndim):
            for shift in (1, -1):
                near = np.roll(table, shift, axis=axis)
                edge: list[slice | int] = [slice(None)] * table.ndim
                edge[axis] = 0 if shift == 1 else -1
                near[tuple(edge)] = np.nan
                known = ~np.isnan(near)
                total[known] += weights[axis] * near[known]
                count[known] += weights[axis]
        holes = np.isnan(table) & (count > 0)
        table[holes] = total[holes] / count[holes]
    return table
