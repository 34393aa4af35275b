"""Goodput against the rate, and latency against the throughput it is bought with: where a server stops to be useful."""

from __future__ import annotations

import math
from collections.abc import Sequence

from matplotlib.axes import Axes

from reports.drawing.axes import plain_numbers
from reports.drawing.marks import in_series
from reports.drawing.style import MUTED, Picture
from reports.sweep.lines import Lines, lines_over_load
from reports.sweep.load import draw_lines, finish, lines_picture
from reports.sweep.points import SweepPoint, SweepResult, mean_of, titled

GOODPUT, THROUGHPUT, ATTAINMENT = "request_goodput", "request_throughput", "slo_attainment"
CURVES = ("p99_ttft_ms", "p99_e2el_ms")


def goodput_picture(result: SweepResult) -> Picture | None:
    """Goodput and the share within the SLO over the load; None where no load varies or there is no SLO."""
    lines = lines_over_load(result)
    shown = [key for key in (GOODPUT, ATTAINMENT) if result.varies(key)]
    if lines is None or GOODPUT not in shown:
        return None
    title = result.axes[lines.along].title

    def paint(panels: Sequence[Axes]) -> str:
        for axes, key in zip(panels, shown, strict=True):
            draw_lines(axes, lines, lines.load, key)
            axes.set_ylim(bottom=0.0, top=101.0 if key == ATTAINMENT else _top(axes, lines, key))
            plain_numbers(axes.xaxis)
            plain_numbers(axes.yaxis)
            axes.set_title(titled(key))
            axes.set_xlabel(title)
        said = "Goodput is what is left when late requests do not count."
        if result.axes[lines.along].keys[0].rpartition(".")[2] != "rate":
            return said
        ends = [0.0, max(lines.numbers)]  # the load is in requests per second, as goodput is
        panels[0].plot(ends, ends, color=MUTED, linewidth=1.0, linestyle=(0, (5.0, 3.0)), zorder=1.2)
        return f"{said} On the dashed line every request keeps the SLO."

    return lines_picture("goodput", lines, shown, paint, lines.load)


def throughput_picture(result: SweepResult) -> Picture | None:
    """Latency over the throughput that was reached, up the load: it turns upwards at the knee."""
    lines = lines_over_load(result)
    shown = [key for key in CURVES if result.varies(key)]
    if lines is None or not shown or not result.varies(THROUGHPUT):
        return None

    def carried(point: SweepPoint) -> float:
        return mean_of(point, THROUGHPUT)

    def paint(panels: Sequence[Axes]) -> str:
        for axes, key in zip(panels, shown, strict=True):
            draw_lines(axes, lines, carried, key)
            for place, line in enumerate(lines.drawn):
                with in_series(axes, place):
                    _sideways(axes, line.points, line.tint, key)
            finish(axes, result, key, titled(THROUGHPUT))
        return (
            "Along a line the load rises. Where it turns upwards, more load buys latency and no throughput: further "
            "right and lower is better."
        )

    return lines_picture("throughput_latency", lines, shown, paint, carried)


def _top(axes: Axes, lines: Lines, key: str) -> float:
    """The end of the axis: an interval that reaches far beyond all means is cut off, or it would flatten them."""
    most = max(mean for line in lines.drawn for point in line.points if math.isfinite(mean := mean_of(point, key)))
    return min(float(axes.get_ylim()[1]), 1.6 * most)


def _sideways(axes: Axes, points: Sequence[SweepPoint], tint: str, key: str) -> None:
    """The intervals of the throughput."""
    for point in points:
        found, mean = point.estimate(THROUGHPUT), mean_of(point, key)
        low, high = found.ends
        if high > low and math.isfinite(mean):
            axes.plot([low, high], [mean, mean], color=tint, linewidth=0.9, zorder=2)
