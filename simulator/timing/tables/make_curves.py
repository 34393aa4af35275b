"""Curves through points, as profiles hold them."""

from __future__ import annotations

import numpy as np

from simulator.timing.profile.surface import Array, Curve


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
