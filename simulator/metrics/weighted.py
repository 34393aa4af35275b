"""Mean, deviation and percentiles of weighted samples, as if every sample were written out weight times.

A long run has billions of token gaps, but far fewer entries: every request of a batch has the same gap. The percentiles
here are those of `numpy.percentile(numpy.repeat(values, weights), q)`, to the last bit, without the repetition. Samples
come in chunks and are read several times, so that memory does not grow with them: histograms over the order of the
floats (a radix selection) narrow down the entries that a percentile falls on, until few enough are left to sort.
"""

import math
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from simulator.results.records import Floats, Ints

Samples = Callable[[], Iterable[tuple[Floats, Ints]]]
"""Gives the same chunks of (values, weights) each time it is called; values and squares are finite.

A negative weight takes samples back: of no value may the weights add up to less than zero.
"""

SORTED_AT_ONCE = 1 << 18  # entries: above, histograms narrow the search first
BUCKET_BITS = 16


@dataclass(frozen=True, slots=True)
class Distribution:
    """The result of `describe`. `std` is that of the population, as `numpy.std`."""

    count: int
    mean: float
    std: float
    percentiles: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class _Range:
    """A stretch of keys, both ends included, that a wanted rank lies in."""

    low: int
    high: int
    before: int  # weight below `low`
    entries: int

    @property
    def one_value(self) -> bool:
        return self.low == self.high


def describe(samples: Samples, q: Sequence[float]) -> Distribution | None:
    """Count, mean, standard deviation and the percentiles `q` (0 to 100); None where nothing has weight."""
    count, entries, total, low, high = 0, 0, 0.0, 2**64, -1
    for values, weights in _weighing(samples):
        count += int(weights.sum())
        entries += len(values)
        total += weighted_sum(values, weights)
        low = min(low, _key_of(float(values.min())))
        high = max(high, _key_of(float(values.max())))
    if count == 0:
        return None
    mean = total / count
    squares = 0.0
    for values, weights in _weighing(samples):
        from_mean = values - mean
        from_mean *= from_mean
        squares += weighted_sum(from_mean, weights)
    places = [(count - 1) * (p / 100) for p in q]
    ranks = sorted({min(math.floor(place) + i, count - 1) for place in places for i in (0, 1)})
    at = _select(samples, ranks, _Range(low, high, 0, entries))
    percentiles = tuple(
        _between(at[math.floor(place)], at[min(math.floor(place) + 1, count - 1)], place % 1) for place in places
    )
    # Samples that are taken back may leave a rest below 0, by rounding.
    return Distribution(count, mean, math.sqrt(max(squares, 0.0) / count), percentiles)


def weighted_sum(values: Floats, weights: Ints | Floats) -> float:
    """The sum of values * weights. Not numpy.dot: that one's rounding depends on the number of processors."""
    return float(np.multiply(values, weights).sum())


def _between(a: float, b: float, t: float) -> float:
    """numpy's own linear interpolation, which is exact at both ends."""
    return b - (b - a) * (1 - t) if t >= 0.5 else a + (b - a) * t


def _weighing(samples: Samples) -> Iterable[tuple[Floats, Ints]]:
    for values, weights in samples():
        counts = weights != 0
        if not counts.all():
            values, weights = values[counts], weights[counts]
        if len(values):
            yield values, weights


SIGN = np.uint64(1 << 63)


def _keys(values: Floats) -> NDArray[np.uint64]:
    """Whole numbers in the order of the floats: sign bit set for the positive, all bits flipped for the negative."""
    if not len(values) or float(values.min()) > 0.0:  # the usual case, without temporaries for the flips
        return np.ascontiguousarray(values, dtype=np.float64).view(np.uint64) ^ SIGN
    bits = (values + 0.0).view(np.uint64)  # makes one zero of the two
    return np.where(bits & SIGN, ~bits, bits | SIGN)


def _key_of(value: float) -> int:
    return int(_keys(np.array([value]))[0])


def _value_of(key: int) -> float:
    bits = key ^ (1 << 63) if key >> 63 else ~key & (2**64 - 1)
    return float(np.array([bits], dtype=np.uint64).view(np.float64)[0])


def _select(samples: Samples, ranks: Sequence[int], whole: _Range) -> dict[int, float]:
    """The values at `ranks` (from 0, ascending) of the sorted, written-out samples."""
    ranges = [whole]
    while sum(r.entries for r in ranges if not r.one_value) > SORTED_AT_ONCE:
        ranges = _narrow(samples, ranges, ranks)
    gathered = _gather(samples, [r for r in ranges if not r.one_value])
    found: dict[int, float] = {}
    for r, wanted in zip(ranges, _ranks_of(ranges, ranks), strict=True):
        if r.one_value:
            found.update(dict.fromkeys(wanted, _value_of(r.low)))
            continue
        values, weights = _net(*gathered[r])
        order = np.argsort(values)
        below = np.cumsum(weights[order]) + r.before
        places = order[np.searchsorted(below, wanted, side="right")]
        found.update(zip(wanted, values[places].tolist(), strict=True))
    return found


def _ranks_of(ranges: Sequence[_Range], ranks: Sequence[int]) -> list[list[int]]:
    """Which ranks lie in which range; every rank lies in the last range that begins at or below it."""
    cuts = [bisect_left(ranks, r.before) for r in ranges] + [len(ranks)]
    return [list(ranks[a:b]) for a, b in pairwise(cuts)]


def _inside(keys: NDArray[np.uint64], r: _Range) -> NDArray[np.bool_]:
    return (keys >= np.uint64(r.low)) & (keys <= np.uint64(r.high))


def _net(values: Floats, weights: Ints) -> tuple[Floats, Ints]:
    """The samples without those that are taken back."""
    if not len(weights) or weights.min() > 0:
        return values, weights
    values, place = np.unique(values, return_inverse=True)
    net = np.bincount(place, weights=weights, minlength=len(values)).astype(np.int64)
    return values[net > 0], net[net > 0]


def _gather(samples: Samples, ranges: Sequence[_Range]) -> dict[_Range, tuple[Floats, Ints]]:
    """All samples in each of the ranges."""
    found: dict[_Range, list[tuple[Floats, Ints]]] = {r: [] for r in ranges}
    for values, weights in _weighing(samples) if ranges else ():
        keys = _keys(values)
        for r, parts in found.items():
            inside = _inside(keys, r)
            parts.append((values[inside], weights[inside]))
    return {r: _joined(parts) for r, parts in found.items()}


def _joined(parts: Sequence[tuple[Floats, Ints]]) -> tuple[Floats, Ints]:
    return np.concatenate([values for values, _ in parts]), np.concatenate([weights for _, weights in parts])


def _narrow(samples: Samples, ranges: Sequence[_Range], ranks: Sequence[int]) -> list[_Range]:
    """The buckets of `ranges` that a rank lies in: at most a 65,536th of each range in width, or one value."""
    size = 1 << BUCKET_BITS
    shifts = [max((r.high - r.low).bit_length() - BUCKET_BITS, 0) for r in ranges]
    weight_in = np.zeros((len(ranges), size))  # exact: whole numbers below 2**53
    entries_in = np.zeros((len(ranges), size), dtype=np.int64)
    for values, weights in _weighing(samples):
        keys = _keys(values)
        for i, r in enumerate(ranges):
            inside = _inside(keys, r)
            buckets = ((keys[inside] - np.uint64(r.low)) >> np.uint64(shifts[i])).astype(np.intp)
            weight_in[i] += np.bincount(buckets, weights=weights[inside], minlength=size)
            entries_in[i] += np.bincount(buckets, minlength=size)
    narrowed = []
    for i, (r, wanted) in enumerate(zip(ranges, _ranks_of(ranges, ranks), strict=True)):
        upto = np.cumsum(weight_in[i]) + r.before
        for b in np.unique(np.searchsorted(upto, wanted, side="right")).tolist():
            low = r.low + (b << shifts[i])
            high = min(r.high, low + (1 << shifts[i]) - 1)
            narrowed.append(_Range(low, high, int(upto[b] - weight_in[i, b]), int(entries_in[i, b])))
    return narrowed
