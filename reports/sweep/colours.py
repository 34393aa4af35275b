"""Colours of what varies: in the order of a number from dark to light, or a policy's own."""

from __future__ import annotations

from reports.drawing.style import ramp, styles
from reports.sweep.points import SweepAxis

MARKS = "osD^vPX*"


def colours(axis: SweepAxis) -> list[str]:
    """A colour for each place of an axis."""
    if not axis.numbers:
        named = styles([(label, label) for label in axis.labels])
        return [named[label].color for label in axis.labels]
    order = sorted(range(len(axis.numbers)), key=lambda place: axis.numbers[place])
    shares = ramp(len(order))
    return [shares[order.index(place)] for place in range(len(order))]
