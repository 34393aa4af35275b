"""Tables of kernel times: `Curve` over one count, `Surface` over several, as physics times a measured correction."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import exp, log, log2
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulator.timing.profile.physics import Physics

Array = NDArray[np.float64]

FADE_OCTAVES = 4.0
"""So many doublings outside of its grid, nothing is left of a surface's correction."""


@dataclass(frozen=True, slots=True)
class Curve:
    """Microseconds `us` at the ascending `counts` of something; straight lines between, and `us_beyond` for one more.

    Between counts that are at most `tile` apart, it costs what the upper one does: kernels that work in tiles pad to
    it. Below the first count it costs what the first does.
    """

    counts: tuple[float, ...]
    us: tuple[float, ...]
    us_beyond: float
    tile: float = 0.0

    def at(self, count: float) -> float:
        """Microseconds for `count`; 0 for none."""
        counts, us = self.counts, self.us
        if count <= 0:
            return 0.0
        if count <= counts[0]:
            return us[0]
        if count > counts[-1]:
            return us[-1] + self.us_beyond * (count - counts[-1])
        place = bisect_left(counts, count)
        gap = counts[place] - counts[place - 1]
        if gap <= self.tile or counts[place] == count:
            return us[place]
        share = (count - counts[place - 1]) / gap
        return us[place - 1] + share * (us[place] - us[place - 1])


@dataclass(frozen=True, slots=True)
class Axis:
    """The values of one coordinate at which a surface was measured, ascending. It is measured along as log(1 + x/unit).

    `unit` is the smallest value above 0: so nought has a place, and doublings are equally far apart.
    """

    name: str
    values: tuple[float, ...]
    unit: float = field(init=False)
    places: tuple[float, ...] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "unit", next((value for value in self.values if value > 0), 1.0))
        object.__setattr__(self, "places", tuple(log(1.0 + value / self.unit) for value in self.values))

    def find(self, value: float) -> tuple[int, float]:
        """The index of the cell that holds `value`, and how far into it; outside, the edge of the outermost cell."""
        places = self.places
        last = len(places) - 2
        if last < 0:
            return 0, 0.0
        place = log(1.0 + value / self.unit) if value > 0 else 0.0
        index = bisect_right(places, place) - 1
        if index < 0:
            return 0, 0.0
        if index > last:
            return last, 1.0
        return index, (place - places[index]) / (places[index + 1] - places[index])

    def octaves_outside(self, value: float) -> float:
        """Doublings between `value` and the nearest that was measured."""
        low, high = self.values[0], self.values[-1]
        if value > high:
            return log2(value / high) if high > 0 else FADE_OCTAVES
        if value < low:
            return log2((low + self.unit) / (max(value, 0.0) + self.unit))
        return 0.0


@dataclass(frozen=True, slots=True)
class Surface:
    """physics x exp(correction), the correction interpolated linearly on a grid of logarithmic axes.

    `correction` is log(measured / physics), in the order of the axes, the last one fastest. Outside of the grid it is
    that of the edge, faded over `FADE_OCTAVES` to nothing: far out, physics alone speaks.
    """

    axes: tuple[Axis, ...]
    physics: Physics
    correction: tuple[float, ...]
    _strides: tuple[int, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        sizes = [len(axis.values) for axis in self.axes]
        strides = [1] * len(sizes)
        for i in range(len(sizes) - 2, -1, -1):
            strides[i] = strides[i + 1] * sizes[i + 1]
        object.__setattr__(self, "_strides", tuple(strides))

    def us(self, coordinates: Sequence[float], features: Mapping[str, float]) -> float:
        """Microseconds at one place."""
        base: float = self.physics.us(features)
        corner, weights, outside = 0, [], 0.0
        for axis, stride, value in zip(self.axes, self._strides, coordinates, strict=True):
            index, share = axis.find(value)
            corner += index * stride
            if share:
                weights.append((stride, share))
            if not axis.values[0] <= value <= axis.values[-1]:
                outside += axis.octaves_outside(value)
        correction = mix(self.correction, corner, weights, len(weights))
        if outside:
            correction *= max(0.0, 1.0 - outside / FADE_OCTAVES)
        return base * exp(correction)

    def us_many(self, coordinates: Sequence[Array], features: Mapping[str, Array]) -> Array:
        """Microseconds at many places, an array a coordinate; `us` up to the last bits."""
        correction = self.corrections(coordinates)
        result: Array = np.asarray(self.physics.us(features), dtype=np.float64) * np.exp(correction)
        return result

    def corrections(self, coordinates: Sequence[Array]) -> Array:
        """The faded corrections at many places."""
        shape = np.broadcast_shapes(*[np.shape(values) for values in coordinates])
        corner = np.zeros(shape, dtype=np.int64)
        outside = np.zeros(shape)
        shares: list[tuple[int, Array]] = []
        for axis, stride, values in zip(self.axes, self._strides, coordinates, strict=True):
            index, share = find_many(axis, np.broadcast_to(values, shape))
            corner += index * stride
            outside += octaves_outside(axis, np.broadcast_to(values, shape))
            shares.append((stride, share))
        table = np.asarray(self.correction)
        total = np.zeros(shape)
        for chosen in range(1 << len(shares)):
            weight: Any = np.ones(shape)
            offset = 0
            for i, (stride, share) in enumerate(shares):
                up = chosen >> i & 1
                offset += stride * up
                weight = weight * (share if up else 1.0 - share)
            place = np.minimum(corner + offset, len(table) - 1)  # an axis of one value has no upper corner
            total += np.where(weight > 0, weight * table[place], 0.0)
        return total * np.clip(1.0 - outside / FADE_OCTAVES, 0.0, 1.0)


def find_many(axis: Axis, values: Array) -> tuple[NDArray[np.int64], Array]:
    """`Axis.find` for an array."""
    places = np.asarray(axis.places)
    if len(places) < 2:
        return np.zeros(values.shape, dtype=np.int64), np.zeros(values.shape)
    place = np.log(1.0 + np.maximum(values, 0.0) / axis.unit)
    index = np.clip(np.searchsorted(places, place, side="right") - 1, 0, len(places) - 2)
    share = np.clip((place - places[index]) / (places[index + 1] - places[index]), 0.0, 1.0)
    return index.astype(np.int64), share


def octaves_outside(axis: Axis, values: Array) -> Array:
    """`Axis.octaves_outside` for an array."""
    low, high = axis.values[0], axis.values[-1]
    above = np.log2(np.maximum(values, high) / high) if high > 0 else np.where(values > high, FADE_OCTAVES, 0.0)
    below = np.log2((low + axis.unit) / (np.clip(values, 0.0, low) + axis.unit))
    result: Array = above + below
    return result


def mix(table: Sequence[float], corner: int, weights: Sequence[tuple[int, float]], depth: int) -> float:
    """Linear interpolation between the corners of a cell, one axis after another."""
    if not depth:
        return table[corner]
    stride, share = weights[depth - 1]
    low = mix(table, corner, weights, depth - 1)
    if not share:  # on the lower edge, or on an axis of one value, where there is no upper one
        return low
    return low + share * (mix(table, corner + stride, weights, depth - 1) - low)
