"""Axes that read well: decades with 1-2-5 labels, thousands separators, an SLO line with its name on it."""

from __future__ import annotations

from collections.abc import Callable

from matplotlib.axes import Axes
from matplotlib.axis import Axis, XAxis
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter, NullLocator

from reports.style import INK
from reports.units import short

LOG_FROM = 20.0  # a range of values wider than this factor gets a logarithmic axis


def plain_numbers(axis: Axis, bins: int = 6) -> None:
    """At most `bins` round tick labels, never in scientific notation."""
    axis.set_major_locator(MaxNLocator(bins, steps=[1, 2, 2.5, 5, 10]))
    axis.set_major_formatter(FuncFormatter(lambda value, _: short(value)))


def log_numbers(axis: Axis, ratio: float, text: Callable[[float], str] = short) -> None:
    """A logarithmic scale for a range of so large a factor: labels at 1, 2 and 5 of each decade, or at 1 alone."""
    wide = ratio > 300.0
    if isinstance(axis, XAxis):
        axis.axes.set_xscale("log")
    else:
        axis.axes.set_yscale("log")
    axis.set_major_locator(LogLocator(10.0, subs=(1.0,) if wide else (1.0, 2.0, 5.0), numticks=20))
    axis.set_major_formatter(FuncFormatter(lambda value, _: text(value)))
    axis.set_minor_formatter(NullFormatter())
    if not wide:
        axis.set_minor_locator(NullLocator())


def latency_axis(axes: Axes, low: float, high: float) -> None:
    """The x axis for milliseconds from `low` to `high`: logarithmic where they are positive and lie far apart."""
    if low > 0.0 and high / low > LOG_FROM:
        log_numbers(axes.xaxis, high / low, _with_unit)
        axes.set_xlim(low / 1.15, high * 1.15)
    else:
        axes.set_xlim(0.0, high * 1.04 if high > 0.0 else 1.0)
        plain_numbers(axes.xaxis)
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: _with_unit(value)))


def _with_unit(milliseconds: float) -> str:
    if abs(milliseconds) < 1000.0:
        return f"{short(milliseconds)} ms" if milliseconds else "0"
    return f"{short(milliseconds / 1e3)} s"


def slo_line(axes: Axes, limit_ms: float, of: str = "") -> None:
    """A vertical line at the SLO, named above the plot, where no curve is; `of` says whose limit it is."""
    axes.axvline(limit_ms, color=INK, linewidth=1.1, linestyle=(0, (2.0, 2.0)), zorder=2.5)
    axes.annotate(
        f"SLO {limit_ms:,g} ms{of and f' ({of})'}",
        (limit_ms, 1.0),
        xycoords=("data", "axes fraction"),
        xytext=(0, 2.5),
        textcoords="offset points",
        ha="center",
        va="bottom",
        fontsize=8.0,
        color=INK,
    )
