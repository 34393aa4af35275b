"""Tables of kernel times: `Curve` over one count, `Surface` over several, as physics times a measured correction."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import inf, log
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulator.timing.arithmetic import FADE_OCTAVES, TILE, Kernel, Knots, Lookup, PlainCurve, Weights, on_curve

# The form of a kernel's time: a launch, work that adds up, and the slowest resource.
#     us = constant + sum(coefficient x feature) + pnorm(roof, roof, ...),   roof = sum(coefficient x feature)
#
# All coefficients are at least 0, so a step that does more never takes less. Features are counts of a step; a
# coefficient is microseconds for one of them. With p = 1 resources are used one after another, with a large p at
# once.

Sum = tuple[tuple[str, float], ...]  # coefficients by feature, in a fixed order: floats are added in it


@dataclass(frozen=True, slots=True)
class Physics:
    """A kernel's time in microseconds. Features may be numbers, or arrays of equal shape."""

    constant_us: float
    terms: Sum = ()
    roofs: tuple[Sum, ...] = ()
    p: float = 4.0

    def us(self, features: Mapping[str, Any]) -> Any:
        """Microseconds for these features: a float for numbers, an array for arrays."""
        total: Any = self.constant_us
        for name, coefficient in self.terms:
            total = total + coefficient * features[name]
        if not self.roofs:
            return total
        powers: Any = 0.0
        for roof in self.roofs:
            work: Any = 0.0
            for name, coefficient in roof:
                work = work + coefficient * features[name]
            if len(self.roofs) == 1:
                return total + work
            powers = powers + work**self.p
        return total + powers ** (1.0 / self.p)

    def kernel(self, features: Sequence[str]) -> Kernel:
        """This physics for numbers in this order. ValueError where one is not among them."""

        def placed(coefficients: Sum) -> Weights:
            return tuple((features.index(name), coefficient) for name, coefficient in coefficients)

        p = self.p if len(self.roofs) > 1 else 1.0  # of one roof the norm is the roof itself
        return self.constant_us, placed(self.terms), tuple(placed(roof) for roof in self.roofs), p


def decode_features(seqs: Any, context: Any) -> dict[str, Any]:
    """Counts of batches of equal decodes."""
    return {"seqs": seqs, "keys": seqs * context, "chain": context}


def prompt_features(
    chunks: Any, tokens: Any, pairs: Any, longest: Any, seqs: Any, context: Any, knee_keys: float = inf
) -> dict[str, Any]:
    """Counts of steps with prompt chunks."""
    keys = seqs * context
    return {
        "seqs": seqs,
        "keys": keys,
        "missed": keys * np.clip(np.log2(np.maximum(keys / knee_keys, 0.25)) + 0.5, 0.0, 1.0),
        "pairs": pairs,
        "tokens": tokens,
        "tiles": (chunks + seqs) * -(-tokens // (chunks * TILE)),
        "chain": np.maximum(longest, context),
    }


# Tables.

Array = NDArray[np.float64]


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
        return on_curve(self.plain(), count)

    def plain(self) -> PlainCurve:
        return self.counts, self.us, self.us_beyond, self.tile


@dataclass(frozen=True, slots=True)
class SurfaceAxis:
    """The values of one coordinate at which a surface was measured, ascending. It is measured along as log(1 + x/unit).

    `unit` is the smallest value above 0: so nought has a place, and doublings are equally far apart.
    """

    name: str
    values: tuple[float, ...]
    unit: float = field(init=False)
    places: tuple[float, ...] = field(init=False)
    knots: Knots = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "unit", next((value for value in self.values if value > 0), 1.0))
        object.__setattr__(self, "places", tuple(log(1.0 + value / self.unit) for value in self.values))
        object.__setattr__(self, "knots", (self.places, self.unit))


@dataclass(frozen=True, slots=True)
class Surface:
    """physics x exp(correction), the correction interpolated linearly on a grid of logarithmic axes.

    `correction` is log(measured / physics), in the order of the axes, the last one fastest. Outside of the grid it is
    that of the edge, faded over `FADE_OCTAVES` to nothing: far out, physics alone speaks.
    """

    axes: tuple[SurfaceAxis, ...]
    physics: Physics
    correction: tuple[float, ...]

    def lookup(self, features: Sequence[str]) -> Lookup:
        """Make a lookup for features in this order. ValueError where the physics has another feature."""
        spans = tuple((axis.values[0], axis.values[-1]) for axis in self.axes)
        return Lookup(self.correction, tuple(axis.knots for axis in self.axes), spans, self.physics.kernel(features))

    def us_many(self, coordinates: Sequence[Array], features: Mapping[str, Array]) -> Array:
        """Microseconds at many places, an array a coordinate; a `lookup` up to the last bits.

        Arrays need not be of one shape: an axis given as a column and one given as a row make a grid of places, and
        what depends on one of them alone is worked out once.
        """
        correction = self.corrections(coordinates)
        result: Array = np.asarray(self.physics.us(features), dtype=np.float64) * np.exp(correction)
        return result

    def corrections(self, coordinates: Sequence[Array]) -> Array:
        """The faded corrections at many places."""
        corner: Any = 0
        outside: Any = 0.0
        shares: list[tuple[int, Array]] = []
        stride = len(self.correction)
        for axis, given in zip(self.axes, coordinates, strict=True):
            values = np.asarray(given)
            stride //= len(axis.values)
            index, share = find_many(axis, values)
            corner = corner + index * stride
            outside = outside + outside_many(axis, values)
            shares.append((stride, share))
        table = np.asarray(self.correction)
        total = np.zeros(np.shape(corner))
        for chosen in range(1 << len(shares)):
            weight: Any = 1.0
            offset = 0
            for i, (stride, share) in enumerate(shares):
                up = chosen >> i & 1
                offset += stride * up
                weight = weight * (share if up else 1.0 - share)
            place = np.minimum(corner + offset, len(table) - 1)  # an axis of one value has no upper corner
            total += np.where(weight > 0, weight * table[place], 0.0)
        faded: Array = total * np.clip(1.0 - outside / FADE_OCTAVES, 0.0, 1.0)
        return faded


def find_many(axis: SurfaceAxis, values: Array) -> tuple[NDArray[np.int64], Array]:
    """`simulator.timing.arithmetic.find` for an array."""
    places = np.asarray(axis.places)
    if len(places) < 2:
        return np.zeros(values.shape, dtype=np.int64), np.zeros(values.shape)
    place = np.log(1.0 + np.maximum(values, 0.0) / axis.unit)
    index = np.clip(np.searchsorted(places, place, side="right") - 1, 0, len(places) - 2)
    share = np.clip((place - places[index]) / (places[index + 1] - places[index]), 0.0, 1.0)
    return index.astype(np.int64), share


def outside_many(axis: SurfaceAxis, values: Array) -> Array:
    """`simulator.timing.arithmetic.octaves_outside` for an array."""
    low, high = axis.values[0], axis.values[-1]
    above = np.log2(np.maximum(values, high) / high) if high > 0 else np.where(values > high, FADE_OCTAVES, 0.0)
    below = np.log2((low + axis.unit) / (np.clip(values, 0.0, low) + axis.unit))
    result: Array = above + below
    return result


def mesh(axes: Sequence[SurfaceAxis]) -> list[Array]:
    """The coordinates of a grid: for each axis an array of the grid's shape."""
    return [*np.meshgrid(*[np.asarray(axis.values, dtype=np.float64) for axis in axes], indexing="ij")]


def flat(table: Any) -> tuple[float, ...]:
    """A table as profiles hold it, the last axis fastest."""
    return tuple(np.asarray(table, dtype=np.float64).ravel().tolist())


def make_curve(counts: Array, us: Array, tile: float = 0.0) -> Curve:
    """A curve through these points; beyond the last, with the slope from about half of it."""
    beyond = float(us[-1] / counts[-1])
    if len(counts) > 1:
        half = min(int(np.searchsorted(counts, counts[-1] / 2)), len(counts) - 2)
        beyond = max(0.0, float((us[-1] - us[half]) / (counts[-1] - counts[half])))
    return Curve(tuple(counts.tolist()), tuple(round_us(us)), float(f"{beyond:.5g}"), tile)


def scaled(curve: Curve, factor: float) -> Curve:
    """The curve times a factor."""
    if factor == 1.0:
        return curve
    return Curve(curve.counts, tuple(factor * us for us in curve.us), factor * curve.us_beyond, curve.tile)


def round_us(values: Array) -> list[float]:
    """Microseconds to five significant digits: less than any noise, and short in JSON."""
    return [float(f"{value:.5g}") for value in values.tolist()]
