"""Lookups in the tables of a profile, one place at a time: plain classes, so that they can be compiled (setup.py)."""

from collections.abc import Sequence
from operator import truediv
from typing import Any

from simulator.timing.profile.arithmetic import (
    Floats,
    Kernel,
    Knots,
    Span,
    corrected,
    cut,
    kernel_us,
    octaves_outside,
    on_many_axes,
    on_one_axis,
)


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
    """The tables of a `simulator.timing.profile.skew.Skew`, which says what its axes and times are."""

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
