"""Axes that read well: 1-2-5 labels, thousands separators, times in people's units, an SLO line that nothing hides."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from matplotlib.axes import Axes
from matplotlib.axis import Axis, XAxis
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, MaxNLocator, NullFormatter, NullLocator

from reports.drawing.style import INK
from reports.units import TimeUnit, short

LOG_FROM = 20.0  # a range of values wider than this factor gets a logarithmic axis


def plain_numbers(axis: Axis, bins: int = 6) -> None:
    """At most `bins` round tick labels, never in scientific notation."""
    axis.set_major_locator(MaxNLocator(bins, steps=[1, 2, 2.5, 5, 10]))
    axis.set_major_formatter(FuncFormatter(lambda value, _: short(value)))


def log_numbers(axis: Axis, ratio: float, text: Callable[[float], str] = short) -> None:
    """A logarithmic scale for a range of so large a factor: labels at 1, 2 and 5 of each decade, or at 1 alone."""
    wide = ratio > 300.0
    _logarithmic(axis)
    axis.set_major_locator(LogLocator(10.0, subs=(1.0,) if wide else (1.0, 2.0, 5.0), numticks=20))
    axis.set_major_formatter(FuncFormatter(lambda value, _: text(value)))
    axis.set_minor_formatter(NullFormatter())
    if not wide:
        axis.set_minor_locator(NullLocator())


def _logarithmic(axis: Axis) -> None:
    if isinstance(axis, XAxis):
        axis.axes.set_xscale("log")
    else:
        axis.axes.set_yscale("log")


def latency_axis(axes: Axes, low: float, high: float) -> None:
    """The x axis for milliseconds from `low` to `high`: logarithmic where they are positive and lie far apart."""
    if low > 0.0 and high / low > LOG_FROM:
        log_times(axes.xaxis, low, high)
        axes.set_xlim(low / 1.15, high * 1.15)
    else:
        axes.set_xlim(0.0, high * 1.04 if high > 0.0 else 1.0)
        plain_times(axes.xaxis, high)


def plain_times(axis: Axis, high_ms: float, bins: int = 6) -> None:
    """Round tick labels for milliseconds, all in the unit in which people say the largest."""
    unit = _unit(high_ms)
    axis.set_major_locator(_Scaled(unit.milliseconds, bins))
    axis.set_major_formatter(
        FuncFormatter(lambda value, _: f"{short(value / unit.milliseconds)} {unit.unit}" if value else "0")
    )


def log_times(axis: Axis, low_ms: float, high_ms: float, most: int = 7) -> None:
    """A logarithmic scale for milliseconds, with ticks where people have words: 100 ms, 1 s, 10 s, 1 min, 1 h."""
    _logarithmic(axis)
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


def time_text(milliseconds: float) -> str:
    """A tick in its own unit: 200 ms, 5 s, 10 min."""
    unit = _unit(milliseconds)
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
