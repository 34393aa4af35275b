"""The arithmetic of a profile: physics, and what a table says between its knots.

Functions of plain numbers, tuples and arrays that belong to no class, so that they can be compiled (setup.py).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from math import log
from typing import Any

Sum = tuple[tuple[str, float], ...]
"""Coefficients by feature, in a fixed order: floats are added in it."""
Floats = tuple[float, ...]
Knots = tuple[Floats, float]
"""The places of an axis at which something was measured, ascending, and its unit: a value x lies at log(1 + x/unit)."""


def find(knots: Knots, value: float) -> tuple[int, float]:
    """The index of the cell that holds `value`, and how far into it; outside, the edge of the outermost cell."""
    places, unit = knots
    last = len(places) - 2
    if last < 0:
        return 0, 0.0
    place = log(1.0 + value / unit) if value > 0 else 0.0
    index = bisect_right(places, place) - 1
    if index < 0:
        return 0, 0.0
    if index > last:
        return last, 1.0
    low = places[index]
    return index, (place - low) / (places[index + 1] - low)


def on_two_axes(table: Floats, rows: Knots, columns: Knots, row: float, column: float) -> float:
    """The table's value at `row` and `column` of two axes, linear between their knots; one row after the other.

    It is what `mix` gives, to the bit: the lookup of most tables, which makes neither lists nor calls of itself.
    """
    i, down = find(rows, row)
    j, right = find(columns, column)
    width = len(columns[0])
    corner = i * width + j
    low = table[corner]
    if down:
        low += down * (table[corner + width] - low)
    if not right:
        return low
    high = table[corner + 1]
    if down:
        high += down * (table[corner + width + 1] - high)
    return low + right * (high - low)


def mix(table: Floats, corner: int, weights: Sequence[tuple[int, float]], depth: int) -> float:
    """Linear interpolation between the corners of a cell, one axis after another."""
    if not depth:
        return table[corner]
    stride, share = weights[depth - 1]
    low = mix(table, corner, weights, depth - 1)
    if not share:  # on the lower edge, or on an axis of one value, where there is no upper one
        return low
    return low + share * (mix(table, corner + stride, weights, depth - 1) - low)


def kernel_us(constant_us: float, terms: Sum, roofs: tuple[Sum, ...], p: float, features: Mapping[str, Any]) -> Any:
    """Microseconds of a kernel by `simulator.timing.profile.physics`: a float for numbers, an array for arrays."""
    total: Any = constant_us
    for name, coefficient in terms:
        total = total + coefficient * features[name]
    if not roofs:
        return total
    powers: Any = 0.0
    for roof in roofs:
        work: Any = 0.0
        for name, coefficient in roof:
            work = work + coefficient * features[name]
        if len(roofs) == 1:
            return total + work
        powers = powers + work**p
    return total + powers ** (1.0 / p)
