"""Latency and goodput over the load, with the knee of each line; latency over the throughput that it buys."""

import math
from collections.abc import Callable, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from reports.drawing.axes import LOG_FROM, log_times, plain_numbers, plain_times, scaled_numbers, time_text
from reports.drawing.coincide import said
from reports.drawing.marks import Mark, Painted, Series, in_series
from reports.drawing.style import CARD, INK, MUTED, Picture, draw
from reports.sweep.knee import RULE, knee
from reports.sweep.lines import Drawn, Lines, lines_over_load, load_axis
from reports.sweep.points import SweepPoint, SweepResult, column, mean_of, titled
from reports.tables.request_tables import TableRows
from reports.units import MISSING, latency, short

SHOWN = ("p99_ttft_ms", "p99_tpot_ms")
GOODPUT, THROUGHPUT, ATTAINMENT = "request_goodput", "request_throughput", "slo_attainment"
BOUND_WORDS = " The black dashed line: no scheduler can do better."
CURVES = ("p99_ttft_ms", "p99_e2el_ms")


def load_picture(result: SweepResult) -> Picture | None:
    """A panel for each latency, a line for each setting of the other axes; None where no load varies."""
    lines = lines_over_load(result)
    shown = [key for key in SHOWN if result.varies(key)]
    if lines is None or not shown:
        return None
    title = result.axes[lines.along].title

    def paint(panels: Sequence[Axes]) -> str:
        for axes, key in zip(panels, shown, strict=True):
            draw_lines(axes, lines, lines.load, key)
            finish(axes, result, key, title)
        drawn = [draw_bound(axes, lines, key) for axes, key in zip(panels, shown, strict=True)]
        return RULE + (BOUND_WORDS if any(drawn) else "")

    return lines_picture("load", lines, shown, paint, lines.load)


def lines_picture(
    name: str,
    lines: Lines,
    shown: Sequence[str],
    paint: Callable[[Sequence[Axes]], str],
    x_of: Callable[[SweepPoint], float],
) -> Picture:
    """A panel for each metric of `shown`, which `paint` fills and says something of; one legend below all.

    `x_of` is where a point stands along the axis.
    """

    def painted(figure: Figure) -> Painted:
        panels = figure.subplots(1, len(shown), squeeze=False)[0]
        words = paint(panels)
        figure.legend(handles=lines.handles(), loc="outside lower center", ncols=3, title=lines.title or None)
        marks = [
            Mark(axes, x_of(point), mean_of(point, key), f"{point.label}: {value_words(point, key)}", place)
            for axes, key in zip(panels, shown, strict=True)
            for place, line in enumerate(lines.drawn)
            for point in line.points
        ]
        bars = "Bars are 95 % intervals over seeds." if lines.result.seeds > 1 else "One seed: no intervals."
        rest = f" {lines.hidden:,} more lines are in table.csv." if lines.hidden else ""
        text = f"{words} {bars}{said(lines.coinciding(shown))}{rest}"
        return Painted(text, marks, [Series(line.label, line.tint) for line in lines.drawn])

    rows = math.ceil((len(lines.drawn) + 2) / 3)
    return draw(name, (5.6 * len(shown), 3.6 + 0.24 * rows), painted)


def value_words(point: SweepPoint, key: str) -> str:
    """A metric of a point with its interval over seeds."""
    shown = column(key)
    found = point.estimate(key, shown.scale)
    mean, *ends = (
        latency(each) if shown.unit == "ms" else f"{short(each)} {shown.unit}".rstrip()
        for each in (found.mean, *(() if found.low is None else found.ends))
    )
    between = f" (95 %: {ends[0]} to {ends[1]})" if ends else ""
    return f"{shown.title} {mean}{between}{', saturated' if point.is_saturated else ''}"


def draw_lines(axes: Axes, lines: Lines, x_of: Callable[[SweepPoint], float], key: str) -> None:
    """A metric of every line over `x_of`, each as a series of its own."""
    for place, line in enumerate(lines.drawn):
        with in_series(axes, place):
            draw_line(axes, line, x_of, key)


def draw_line(axes: Axes, line: Drawn, x_of: Callable[[SweepPoint], float], key: str) -> None:
    """A metric over `x_of`, with its intervals, a ring at the knee and hollow marks where a point is saturated."""
    scale = column(key).scale
    known = [point for point in line.points if math.isfinite(point.estimate(key).mean)]
    if not known:
        return
    x = [x_of(point) for point in known]
    found = [point.estimate(key, scale) for point in known]
    y = [each.mean for each in found]
    axes.plot(x, y, color=line.tint, linestyle=line.dash, linewidth=1.4, zorder=2)
    spread = [[mean - each.ends[0] for mean, each in zip(y, found, strict=True)]]
    spread.append([each.ends[1] - mean for mean, each in zip(y, found, strict=True)])
    if any(map(any, spread)):
        axes.errorbar(x, y, yerr=spread, fmt="none", ecolor=line.tint, elinewidth=0.9, capsize=2, zorder=2)
    for at, mean, point in zip(x, y, known, strict=True):
        face = CARD if point.is_saturated else line.tint
        axes.plot([at], [mean], color=line.tint, marker=line.mark, markersize=4.5,
                  markerfacecolor=face, linestyle="", zorder=3)  # fmt: skip
    if (at_knee := knee(known)) is not None:
        axes.plot([x_of(at_knee.point)], [at_knee.point.estimate(key, scale).mean], color=line.tint, marker="o",
                  markersize=10, markerfacecolor="none", markeredgewidth=1.4, linestyle="", zorder=4)  # fmt: skip


def draw_bound(axes: Axes, lines: Lines, key: str) -> bool:
    """Draw what no scheduler can do better at each load, the weakest of its points; return whether it is known."""
    shown, weakest = column(key), max if column(key).better > 0 else min
    at: dict[float, list[float]] = {}
    for point in lines.result.done:
        at.setdefault(lines.load(point), []).append(point.bound(key) * shown.scale)
    known = [(load, weakest(values)) for load, values in sorted(at.items()) if all(map(math.isfinite, values))]
    if known:
        axes.plot(
            *zip(*known, strict=True), color=INK, linewidth=1.1, linestyle=(0, (6.0, 3.0)), zorder=1.3, gid="bound"
        )
        if shown.better < 0:
            axes.set_ylim(bottom=min(axes.get_ylim()[0], 0.8 * min(value for _, value in known)))
    return bool(known)


def finish(axes: Axes, result: SweepResult, key: str, x_title: str) -> None:
    """Scales, titles and the SLO of a panel of latencies."""
    ends = [end for point in result.done for end in (mean_of(point, key), point.estimate(key).ends[1])]
    limit = result.limits.get(key)
    known = [end for end in (*ends, math.nan if limit is None else limit) if math.isfinite(end)]
    low, high = min(known), max(known)
    if limit is not None:
        axes.axhline(limit, color=INK, linewidth=1.1, linestyle=(0, (2.0, 2.0)), zorder=6)
        axes.annotate(f"SLO {time_text(limit)}", (0.0, limit), xycoords=("axes fraction", "data"), xytext=(3, 2),
                      textcoords="offset points", ha="left", va="bottom", fontsize=8.0, color=INK, zorder=7,
                      bbox={"facecolor": CARD, "edgecolor": "none", "pad": 0.6, "alpha": 0.85})  # fmt: skip
    if low > 0 and high / low > LOG_FROM:
        log_times(axes.yaxis, low, high)
        axes.set_ylim(low / 1.5, high * 1.2)
    else:
        axes.set_ylim(bottom=0)
        plain_times(axes.yaxis, high)
    scaled_numbers(axes.xaxis, axes.dataLim.x0, axes.dataLim.x1)
    axes.set_title(column(key).title)
    axes.set_xlabel(x_title)


def knee_table(result: SweepResult) -> TableRows | None:
    """The knee of each line; None where there is none."""
    along = load_axis(result)
    if along is None:
        return None
    title, numbers = result.axes[along].title, result.axes[along].numbers
    body = []
    for label, points in result.lines(along):
        found = knee(points)
        if found is None:
            continue
        at, first, last = (numbers[each.places[along]] for each in (found.point, found.first, found.last))
        where = short(at) if found.inside else f"{short(at)} (the line's end)"
        spread = f"{short(first)} to {short(last)}" if first != last else "the same"
        means = [found.point.estimate(key).mean for key in SHOWN]
        cells = [latency(mean) if math.isfinite(mean) else MISSING for mean in means]
        carried = short(found.point.estimate(THROUGHPUT).mean)
        body.append((label, where, *([spread] if result.seeds > 1 else []), carried, *cells))
    if not body:
        return None
    seeds = (f"over {result.seeds} seeds",) if result.seeds > 1 else ()
    heads = (column(key).title for key in SHOWN)
    return TableRows(("line", f"knee at {title}", *seeds, "throughput (req/s)", *heads), tuple(body))


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
        drawn = [draw_bound(axes, lines, key) for axes, key in zip(panels, shown, strict=True)]
        said = "Goodput is what is left when late requests do not count."
        said += BOUND_WORDS if any(drawn) else ""
        if result.axes[lines.along].keys[0].rpartition(".")[2] != "rate":
            return said
        ends = [0.0, max(lines.numbers)]  # the load is in requests per second, as goodput is
        panels[0].plot(ends, ends, color=MUTED, linewidth=1.0, linestyle=(0, (5.0, 3.0)), zorder=1.2)
        return f"{said} On the {'grey ' if any(drawn) else ''}dashed line every request keeps the SLO."

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
