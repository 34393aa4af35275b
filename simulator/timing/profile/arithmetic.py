"""The arithmetic of a profile: physics, and what a table says between its knots.

Functions of plain numbers and tuples that belong to no class, so that they can be compiled (setup.py).
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from math import exp, log, log2, pow

from simulator.timing.affine import affine_run

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
"""Constant, terms, roofs and p of a `simulator.timing.profile.physics.Physics`; p is 1 for a single roof."""
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
    """Microseconds of a kernel: `simulator.timing.profile.physics.Physics.us` of numbers."""
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
