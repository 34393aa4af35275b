"""Shades of a cell by its value, and text that can be read on them."""

from collections.abc import Sequence

import numpy as np
from matplotlib.colors import LogNorm, Normalize

from reports.drawing.axes import LOG_FROM
from reports.units import short
from simulator.results.records import Floats

DARK, LIGHT = "#10141a", "#fafbfc"  # text on a cell: no ink of the page's, which changes with its theme
LEAST_SPAN = 0.05  # of the largest value of a map


def text_on(rgba: Sequence[float]) -> str:
    """The colour of text that can be read on this one (its relative luminance, as WCAG 2 has it)."""
    parts = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in rgba[:3]]
    luminance = 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2]
    return DARK if luminance > 0.22 else LIGHT


def printed(value: float) -> float:
    """The value that a cell's text says."""
    return float(short(value).replace(",", "")) if np.isfinite(value) else value


def shading(values: Floats) -> Normalize:
    """From values to shades, over those that are finite: a logarithm where they lie far apart.

    Small differences have shades that hardly differ: the ends are at least `LEAST_SPAN` apart, around the middle.
    """
    known = values[np.isfinite(values)]
    low, high = float(known.min()), float(known.max())
    if high - low < (least := LEAST_SPAN * max(abs(low), abs(high)) or 1.0):
        middle = (low + high) / 2
        return Normalize(middle - least / 2, middle + least / 2)
    return LogNorm(low, high) if low > 0 and high / low > LOG_FROM else Normalize(low, high)
