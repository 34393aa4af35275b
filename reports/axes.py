"""Axes that read well: 1-2-5 labels, times in people's units, a visible SLO line; shades, and curves that coincide."""

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis, XAxis
from matplotlib.colors import LogNorm, Normalize
from matplotlib.figure import Figure
from matplotlib.ticker import (
    FixedLocator,
    Formatter,
    FuncFormatter,
    LogLocator,
    MaxNLocator,
    NullFormatter,
    NullLocator,
)

from reports.picture import INK, shorten
from reports.units import Clock, TimeUnit, number, short
from reports.verdict.shown_metrics import joined
from simulator.results.records import Floats

LOG_FROM = 20.0  # a range of values wider than this factor gets a logarithmic axis


def plain_numbers(axis: Axis, bins: int = 6) -> None:
    """At most `bins` round tick labels, never in scientific notation."""
    axis.set_major_locator(MaxNLocator(bins, steps=[1, 2, 2.5, 5, 10]))
    axis.set_major_formatter(_Plain())


class _Plain(Formatter):
    """Labels of three digits or, where these would not say where a tick stands, of as many as say it."""

    def __call__(self, value: float, pos: int | None = None) -> str:
        return short(value)

    def format_ticks(self, values: Sequence[float]) -> list[str]:
        """The labels of all ticks of an axis."""
        apart = min((abs(b - a) for a, b in pairwise(values)), default=0.0)

        def says(places: int) -> bool:
            return all(abs(round(value, places) - value) <= 0.01 * apart for value in values)

        texts = [short(value) for value in values]
        read = [float(text.replace(",", "")) for text in texts]
        if all(abs(one - value) <= 0.01 * apart for one, value in zip(read, values, strict=True)):
            return texts
        places = next((places for places in range(7) if says(places)), 6)
        return [number(value, places) for value in values]


def log_numbers(axis: Axis, ratio: float, text: Callable[[float], str] = short) -> None:
    """A logarithmic scale for a range of so large a factor: labels at 1, 2 and 5 of each decade, or at 1 alone."""
    wide = ratio > 300.0
    _set(axis, "scale", "log")
    axis.set_major_locator(LogLocator(10.0, subs=(1.0,) if wide else (1.0, 2.0, 5.0), numticks=20))
    axis.set_major_formatter(FuncFormatter(lambda value, _: text(value)))
    axis.set_minor_formatter(NullFormatter())
    if not wide:
        axis.set_minor_locator(NullLocator())


def scaled_numbers(axis: Axis, low: float, high: float) -> None:
    """Set tick labels for numbers from `low` to `high`: on a logarithmic scale where they lie far apart."""
    if low > 0.0 and high / low > LOG_FROM:
        log_numbers(axis, high / low)
    else:
        plain_numbers(axis)


def _set(axis: Axis, what: str, *values: Any) -> None:
    """Set the `scale` or the `lim` of either axis."""
    getattr(axis.axes, f"set_{'x' if isinstance(axis, XAxis) else 'y'}{what}")(*values)


def latency_axis(
    axis: Axis, low: float, high: float, *, around: float = 1.15, above: float = 1.04, most: int = 7, bins: int = 6
) -> None:
    """Set an axis for milliseconds from `low` to `high`: logarithmic where they are positive and lie far apart.

    The ends leave room by the factor `around` on a logarithmic scale, by `above` at the top of a linear one.
    """
    if low > 0.0 and high / low > LOG_FROM:
        log_times(axis, low, high, most)
        _set(axis, "lim", low / around, high * around)
    else:
        _set(axis, "lim", 0.0, high * above or 1.0)
        plain_times(axis, high, bins)


def run_time_axis(axes: Axes, end_s: float, clock: Clock, words: str = "time") -> None:
    """Set the x axis for the time of a run, from 0 to its end."""
    axes.set_xlim(0.0, max(end_s / clock.seconds, 1e-9))
    plain_numbers(axes.xaxis, bins=12)
    axes.set_xlabel(f"{words} ({clock.unit})")


def grid_of(figure: Figure, count: int, across: int) -> list[Axes]:
    """Axes for so many panels, row by row."""
    grid: list[Axes] = figure.subplots(max(-(-count // across), 1), across, squeeze=False).ravel().tolist()
    for unused in grid[count:]:
        unused.set_axis_off()
    return grid[:count]


def plain_times(axis: Axis, high_ms: float, bins: int = 6) -> None:
    """Round tick labels for milliseconds, all in the unit in which people say the largest."""
    unit = _unit(high_ms)
    axis.set_major_locator(_Scaled(unit.milliseconds, bins))
    axis.set_major_formatter(FuncFormatter(lambda value, _: time_text(value, unit)))


def log_times(axis: Axis, low_ms: float, high_ms: float, most: int = 7) -> None:
    """A logarithmic scale for milliseconds, with ticks where people have words: 100 ms, 1 s, 10 s, 1 min, 1 h."""
    _set(axis, "scale", "log")
    low, high = low_ms / 1.2, high_ms * 1.2
    apart = math.log(high / low) / most
    ticks: list[float] = []
    for tick in (*_FEW_TIMES, *_MANY_TIMES):
        if low <= tick <= high and all(abs(math.log(tick / other)) >= apart for other in ticks):
            ticks.append(tick)
    axis.set_major_locator(FixedLocator(sorted(ticks) or [low_ms, high_ms]))
    axis.set_major_formatter(FuncFormatter(lambda value, _: time_text(value)))
    axis.set_minor_formatter(NullFormatter())
    axis.set_minor_locator(NullLocator())


def time_text(milliseconds: float, unit: TimeUnit | None = None) -> str:
    """A tick in `unit`, or in its own: 200 ms, 5 s, 10 min."""
    unit = unit or _unit(milliseconds)
    return f"{short(milliseconds / unit.milliseconds)} {unit.unit}" if milliseconds else "0"


_MANY_TIMES = tuple(
    [digit * 10.0**power for power in range(-3, 4) for digit in (1.0, 2.0, 5.0)]
    + [1e4, 2e4, 3e4, 6e4, 12e4, 3e5, 6e5, 12e5, 18e5, 36e5, 72e5, 18e6, 36e6, 72e6, 18e7]
)
_FEW_TIMES = (*(10.0**power for power in range(-3, 5)), 6e4, 6e5, 36e5, 36e6, 36e7)


def _unit(milliseconds: float) -> TimeUnit:
    """Milliseconds below a second, seconds below a minute, minutes below an hour, then hours."""
    size = abs(milliseconds)
    if size < 1e3:
        return TimeUnit("ms", 1.0)
    if size < 6e4:
        return TimeUnit("s", 1e3)
    return TimeUnit("min", 6e4) if size < 36e5 else TimeUnit("h", 36e5)


class _Scaled(MaxNLocator):
    """Ticks that are round in a unit of so many of the axis's own."""

    def __init__(self, unit: float, bins: int) -> None:
        super().__init__(bins, steps=[1, 2, 2.5, 5, 10])
        self._unit_size = unit

    def tick_values(self, vmin: float, vmax: float) -> Sequence[float]:
        found = super().tick_values(vmin / self._unit_size, vmax / self._unit_size)
        return [float(each) * self._unit_size for each in found]


def slo_line(axes: Axes, limit_ms: float, of: str = "") -> None:
    """A vertical line at the SLO over all curves, named above the plot; `of` says whose limit it is."""
    axes.axvline(limit_ms, color=INK, linewidth=1.1, linestyle=(0, (2.0, 2.0)), zorder=6)
    text = f"SLO {time_text(limit_ms)}{of and f' ({of})'}"
    at = axes.transAxes.inverted().transform(axes.transData.transform((limit_ms, 0.0)))[0]
    axes.annotate(
        text,
        (limit_ms, 1.0),
        xycoords=("data", "axes fraction"),
        xytext=(0, 2.5),
        textcoords="offset points",
        ha="left" if at < 0.12 else "right" if at > 0.88 else "center",
        va="bottom",
        fontsize=8.0,
        color=INK,
        zorder=6,
    )


TICKS = (0.0, 50.0, 75.0, 90.0, 95.0, 99.0, 99.9, 99.99)


def height(percent: Floats) -> Floats:
    """Nines of a percentile: 0 at p0, 1 at p90, 2 at p99, and no more than 4.3.

    It is the axis of Gil Tene's HdrHistogram plots (https://hdrhistogram.github.io/HdrHistogram): each further nine
    takes as much room as the one before. A linear one would leave p99 and all beyond the topmost hundredth.
    """
    return np.asarray(-np.log10(np.maximum(1.0 - percent / 100.0, 5e-5)))


def highest(samples: int) -> float:
    """The highest percentile that so many samples have one value beyond."""
    return 100.0 * (1.0 - 1.0 / max(samples, 1))


def tail_axis(axis: Axis, top: float) -> None:
    """Ticks and ends of an axis of `height`, up to the percentile `top`."""
    ticks = [tick for tick in TICKS if tick <= top]
    axis.set_ticks(height(np.array(ticks)).tolist(), [f"{tick:g}" for tick in ticks])
    _set(axis, "lim", 0.0, float(height(np.array(top))) * 1.01)


# Shades of a cell by its value, and text that can be read on them.

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


# Curves that lie on each other: a picture has to say so, as it shows only the one on top.

NEAR = 0.005  # of the picture's range: what is nearer cannot be seen apart


def coinciding(curves: Mapping[str, Floats], span: float) -> list[list[str]]:
    """Groups of two labels or more whose values differ nowhere by more than the width of a line.

    `span` is the range that the picture shows; a value that is missing in both is no difference.
    """
    groups: list[list[str]] = []
    for label, values in curves.items():
        for group in groups:
            first = curves[group[0]]
            if first.shape != values.shape or not len(values):
                continue
            gap = np.where(np.isnan(first) & np.isnan(values), 0.0, np.abs(first - values))
            if (gap <= NEAR * span).all():
                group.append(label)
                break
        else:
            groups.append([label])
    return [group for group in groups if len(group) > 1]


def equal(found: Mapping[str, Hashable]) -> list[list[str]]:
    """Groups of two labels or more that have equal values."""
    groups: dict[Hashable, list[str]] = {}
    for label, value in found.items():
        groups.setdefault(value, []).append(label)
    return [group for group in groups.values() if len(group) > 1]


def said(groups: list[list[str]], where: str = "") -> str:
    """The sentence for a caption; nothing where no curves coincide."""
    return "".join(f" {joined(shorten(label) for label in group)} coincide{where}." for group in groups)
