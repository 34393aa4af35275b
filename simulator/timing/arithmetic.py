"""The arithmetic of step costs, in functions and plain classes that are compiled: lines, tables' lookups, counts."""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from math import exp, inf, log, log2, pow
from operator import truediv
from typing import Any

import numpy as np

# Seconds that lie on a line, as those of a run of decode steps do.

VECTOR_FROM = 64  # steps from which an array is faster than a list comprehension; the numbers are the same


def affine_run(first: float, slope: float, start: int, step: int, repeat: int) -> list[float]:
    """`first + slope * x` for x = start, start + step, ..., `repeat` of them; each rounded as Python rounds it.

    Both paths use IEEE 754 doubles and fuse no multiplication with an addition: they agree to the bit below x = 2**53.
    """
    if repeat == 1:
        return [first + slope * start]
    stop = start + step * repeat
    if repeat < VECTOR_FROM:
        return [first + slope * x for x in range(start, stop, step)]
    run: list[float] = (first + slope * np.arange(start, stop, step)).tolist()
    return run


# Functions of plain numbers and tuples: physics, and what a table says between its knots.

Floats = tuple[float, ...]
Knots = tuple[Floats, float]
"""The places of an axis at which something was measured, ascending, and its unit: a value x lies at log(1 + x/unit)."""
PlainCurve = tuple[Floats, Floats, float, float]
"""The counts, the times at them, the time of one more and the tile of a `simulator.timing.profile.surface.Curve`."""
Lines = tuple["array[float]", "array[float]", "array[float]"]
"""Seconds are first[i] + slope[i] x context up to bounds[i], of contexts that are added up: (bounds, first, slope)."""
Span = tuple[float, float]
Weights = tuple[tuple[int, float], ...]
"""Coefficients by the place of what they are of, in a fixed order: floats are added in it."""
Kernel = tuple[float, Weights, tuple[Weights, ...], float]
"""Constant, terms, roofs and p of a `simulator.timing.profile.surface.Physics`; p is 1 for a single roof."""
FADE_OCTAVES = 4.0  # so many doublings outside of its grid, nothing is left of a surface's correction


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


def on_one_axis(table: Floats, knots: Knots, value: float) -> float:
    """The table's value at `value` of its only axis, linear between the knots."""
    index, share = find(knots, value)
    low = table[index]
    return low + share * (table[index + 1] - low) if share else low


def cut(table: Floats, knots: Knots, width: int, value: float) -> Floats:
    """Cut a table at one value of its first axis; `width` numbers over its other axes are left."""
    index, share = find(knots, value)
    start = index * width
    low = table[start : start + width]
    if not share:
        return low
    high = table[start + width : start + 2 * width]
    return tuple([below + share * (above - below) for below, above in zip(low, high, strict=True)])


def on_many_axes(table: Floats, knots: Sequence[Knots], coordinates: Sequence[float]) -> float:
    """The table's value at a place of its axes, linear between their knots."""
    corner, stride = 0, len(table)
    weights: list[tuple[int, float]] = []
    for axis, value in zip(knots, coordinates, strict=True):
        stride //= len(axis[0])
        index, share = find(axis, value)
        corner += index * stride
        if share:  # not on the lower edge, nor on an axis of one value, where there is no upper one
            weights.append((stride, share))
    return _mix(table, corner, weights, len(weights))


def _mix(table: Floats, corner: int, weights: Sequence[tuple[int, float]], depth: int) -> float:
    """Linear interpolation between the corners of a cell, along the first axis first."""
    if not depth:
        return table[corner]
    stride, share = weights[depth - 1]
    low = _mix(table, corner, weights, depth - 1)
    return low + share * (_mix(table, corner + stride, weights, depth - 1) - low)


def on_curve(curve: PlainCurve, count: float) -> float:
    """Microseconds for `count`; 0 for none."""
    counts, us, us_beyond, tile = curve
    if count <= 0:
        return 0.0
    if count <= counts[0]:
        return us[0]
    if count > counts[-1]:
        return us[-1] + us_beyond * (count - counts[-1])
    place = bisect_left(counts, count)
    gap = counts[place] - counts[place - 1]
    if gap <= tile or counts[place] == count:
        return us[place]
    share = (count - counts[place - 1]) / gap
    return us[place - 1] + share * (us[place] - us[place - 1])


def curves_us(curves: Sequence[PlainCurve], times: float, count: float) -> float:
    """Microseconds of kernels that run so many times, added in their order."""
    total = 0.0
    for curve in curves:
        total += times * on_curve(curve, count)
    return total


def octaves_outside(low: float, high: float, unit: float, value: float) -> float:
    """Doublings between `value` and the nearest of an axis that was measured from `low` to `high`."""
    if value > high:
        return log2(value / high) if high > 0 else FADE_OCTAVES
    if value < low:
        return log2((low + unit) / (max(value, 0.0) + unit))
    return 0.0


def corrected(us: float, correction: float, outside: float) -> float:
    """Microseconds of the physics with a measured correction, so many octaves outside of what was measured."""
    if outside:
        correction *= max(0.0, 1.0 - outside / FADE_OCTAVES)
    return us * exp(correction)


def kernel_us(kernel: Kernel, counts: Floats) -> float:
    """Microseconds of a kernel: `simulator.timing.profile.surface.Physics.us` of numbers."""
    total, terms, roofs, p = kernel
    for place, coefficient in terms:
        total += coefficient * counts[place]
    is_sum = p == 1.0
    powers = 0.0
    for roof in roofs:
        work = 0.0
        for place, coefficient in roof:
            work += coefficient * counts[place]
        powers += work if is_sum else pow(work, p)
    return total + (powers if is_sum else pow(powers, 1.0 / p))


def run_on_lines(lines: Lines, fixed_s: float, context: int, seqs: int, repeat: int) -> list[float]:
    """Seconds of `repeat` steps of `seqs` decodes, whose contexts add up to `context` in the first."""
    bounds, first_s, slope_s = lines
    place = bisect_right(bounds, float(context))
    run: list[float] = []
    while (left := bounds[place] - context) <= seqs * repeat:
        # Those before the next bound lie on one line.
        steps = int(-(-left // seqs))
        if steps == repeat:
            break
        run += affine_run(fixed_s + first_s[place], slope_s[place], context, seqs, steps)
        context += seqs * steps
        repeat -= steps
        place = bisect_right(bounds, float(context))
    line = affine_run(fixed_s + first_s[place], slope_s[place], context, seqs, repeat)
    return run + line if run else line


# Lookups in the tables of a profile, one place at a time.


class Lookup:
    """Looks up one place of a `simulator.timing.profile.surface.Surface`, with the counts of its physics in order.

    `spans` are the least and the largest value of each axis.
    """

    def __init__(self, correction: Floats, axes: Sequence[Knots], spans: Sequence[Span], kernel: Kernel) -> None:
        self._correction = correction
        self._axes = axes
        self._spans = spans
        self._kernel = kernel
        self._last, self._last_span = axes[-1], spans[-1]
        self._rows: dict[int, tuple[Floats, float]] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._correction, self._axes, self._spans, self._kernel)

    def us(self, coordinates: Sequence[float], counts: Floats) -> float:
        """Microseconds at one place."""
        correction = on_many_axes(self._correction, self._axes, coordinates)
        outside = 0.0
        for (_, unit), (low, high), value in zip(self._axes, self._spans, coordinates, strict=True):
            if not low <= value <= high:
                outside += octaves_outside(low, high, unit, value)
        return corrected(kernel_us(self._kernel, counts), correction, outside)

    def us_of_count(self, count: int, value: float, counts: Floats) -> float:
        """Microseconds over a whole count and one value. As `us`, but the row of each count is kept."""
        row = self._rows.get(count)
        if row is None:
            row = self._rows[count] = self._row(count)
        corrections, outside = row
        knots = self._last
        correction = on_one_axis(corrections, knots, value)
        low, high = self._last_span
        if not low <= value <= high:
            outside += octaves_outside(low, high, knots[1], value)
        return corrected(kernel_us(self._kernel, counts), correction, outside)

    def _row(self, count: int) -> tuple[Floats, float]:
        """The corrections at a count, and how far outside of the grid it lies."""
        counts, others = self._axes
        low, high = self._spans[0]
        return cut(self._correction, counts, len(others[0]), count), octaves_outside(low, high, counts[1], count)


class CountedSkew:
    """The tables of a `simulator.timing.profile.kernels.Skew`, which says what its axes and times are."""

    def __init__(self, axes: tuple[Knots, Knots, Knots], decode: Floats, mixed: Floats) -> None:
        self._axes = axes
        self._decode = decode
        self._mixed = mixed
        self._rows: dict[int, tuple[Floats, Floats]] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._axes, self._decode, self._mixed)

    def us(self, seqs: int, context: int, longest: int, squares: int, alone: bool) -> float:
        """Microseconds to add to a layer's attention, in a step of decodes alone or beside prompt chunks."""
        excess = seqs * longest - context  # seqs x (longest - mean)
        if seqs < 2 or longest == 0 or excess <= 0:
            return 0.0
        # Beyond 2**53 the quotient of whole numbers is rounded once; a compiled `/` would round each of them before.
        spread: float = truediv(seqs * squares - context * context, excess * excess)
        share = spread / (1.0 + spread)
        row = self._rows.get(seqs)
        if row is None:
            row = self._rows[seqs] = self._row(seqs)
        _, shares, contexts = self._axes
        if alone:
            return on_one_axis(row[0], shares, share) * excess / seqs
        place = context / seqs / (1.0 + 3.0 * share)
        return on_many_axes(row[1], (shares, contexts), (share, place)) * excess / seqs

    def _row(self, seqs: int) -> tuple[Floats, Floats]:
        """Both tables at so many decodes."""
        counts, (shares, _), (contexts, _) = self._axes
        width = len(shares)
        return cut(self._decode, counts, width, seqs), cut(self._mixed, counts, width * len(contexts), seqs)


# The counts of a step that the physics of attention kernels goes by.
#
# Several prompt chunks of a step are looked up as one: of all their tokens, behind so many cached ones that it
# visits as many (query, key) pairs. Where they visit fewer than a fresh prompt of that length, only the physics can
# know it.

TILE = 128  # query rows of a tile of the prefill kernels (FlashAttention 2 and 3 with heads of 128)
DECODE_COUNTS = ("seqs", "keys", "chain")
PROMPT_COUNTS = ("seqs", "keys", "missed", "pairs", "tokens", "tiles", "chain")
"""The names, in their order.

`tiles` is the kernel's grid: as many tiles for each sequence as the longest chunk has, most of them empty for a
decode. `chain` is the most keys that a tile reads one after another, `missed` the decodes' keys as far as the L2
cache does not hold them: all from sqrt(2) x a knee on, none up to the knee / sqrt(2).
"""


def decode_counts(seqs: int, context: float) -> tuple[float, ...]:
    """Counts of a batch of decodes with this mean context."""
    return seqs, seqs * context, context


def prompt_counts(
    chunks: int, tokens: int, pairs: float, longest: int, seqs: int = 0, context: float = 0.0, knee_keys: float = inf
) -> tuple[float, ...]:
    """Counts of prompt chunks, and of decodes that are computed in one kernel with them."""
    tiles = -(-tokens // (chunks * TILE))
    if not seqs:
        return 0, 0.0, 0.0, pairs, tokens, chunks * tiles, float(longest)
    keys = seqs * context
    missed = keys * min(1.0, max(0.0, log2(keys / knee_keys) + 0.5)) if keys > 0.5 * knee_keys else 0.0
    return seqs, keys, missed, pairs, tokens, (chunks + seqs) * tiles, max(float(longest), context)


def windowed_pairs(chunks: float, tokens: float, pairs: float, window: float) -> float:
    """The (query, key) pairs of equal chunks that lie within a window: the first queries of a chunk see less of it.

    A chunk's queries see from `cached` + 1 to `cached` + `each` keys, as many as its pairs say.
    """
    each = tokens / chunks
    cached = max(0.0, pairs / tokens - 0.5 * (each + 1.0))
    short = min(each, max(0.0, window - cached))  # queries that see less than the window
    return chunks * (short * cached + 0.5 * short * (short + 1.0) + (each - short) * window)
