"""Latency and goodput over the load, with the knee of each line; latency over the throughput that it buys."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from reports.picture import (
    CARD,
    DASHES,
    INK,
    LOG_FROM,
    MUTED,
    Mark,
    Painted,
    Picture,
    Series,
    coinciding,
    draw,
    in_series,
    log_times,
    plain_numbers,
    plain_times,
    ramp,
    said,
    scaled_numbers,
    shorten,
    styles,
    time_text,
)
from reports.sweep.points import RULE, SweepAxis, SweepPoint, SweepResult, column, knee, mean_of, titled
from reports.tables.details import TableRows
from reports.units import MISSING, latency, short
from simulator.policies import Dash

# The lines of a sweep over its load: which are drawn, and the colour, mark and dash of each.

MARKS = "osD^vPX*"
MOST_LINES = 10
LEAST = 3  # points of a line


@dataclass(frozen=True, slots=True)
class Drawn:
    """A line: its label, its points in the order of the load, and how it is drawn."""

    label: str
    points: Sequence[SweepPoint]
    tint: str
    mark: str
    dash: Dash


@dataclass(frozen=True, slots=True)
class Lines:
    """The lines over the load of a sweep. `along` is the place of the load's axis, `hidden` how many are not drawn."""

    result: SweepResult
    along: int
    drawn: Sequence[Drawn]
    hidden: int

    @property
    def numbers(self) -> Sequence[float]:
        """The load at each place of its axis."""
        return self.result.axes[self.along].numbers

    @property
    def title(self) -> str:
        """The key in which the lines differ; empty where there is one line."""
        others = (axis.title for at, axis in enumerate(self.result.axes) if at != self.along)
        return ", ".join(others) if len(self.drawn) > 1 else ""

    def load(self, point: SweepPoint) -> float:
        """The load of a point."""
        return self.numbers[point.places[self.along]]

    def handles(self) -> list[Line2D]:
        """The entries of a legend, with those of the knee and of saturated points."""
        found = [
            Line2D([], [], color=each.tint, marker=each.mark, linestyle=each.dash, markersize=4.5,
                   label=shorten(each.label, 40))
            for each in self.drawn
        ]  # fmt: skip
        ring = Line2D([], [], color=INK, marker="o", markersize=9, markerfacecolor="none", linestyle="", label="knee")
        hollow = Line2D([], [], color=INK, marker="o", markersize=4.5, markerfacecolor=CARD, linestyle="")
        hollow.set_label("saturated")
        return [*found, ring, *([hollow] if any(each.is_saturated for each in self.result.done) else [])]

    def coinciding(self, keys: Sequence[str]) -> list[list[str]]:
        """Groups of lines that lie on each other in all of these metrics."""
        whole = [each for each in self.drawn if len(each.points) == len(self.numbers)]
        done = self.result.done
        known = {key: [mean for point in done if math.isfinite(mean := mean_of(point, key))] for key in keys}
        tops = {key: max(means, default=0.0) for key, means in known.items()}
        shares = {
            each.label: np.array([mean_of(point, key) / (tops[key] or 1.0) for key in keys for point in each.points])
            for each in whole
        }
        return coinciding(shares, 1.0)


def lines_over_load(result: SweepResult) -> Lines | None:
    """The lines of a sweep; None where no load varies or no line has three points."""
    along = load_axis(result)
    if along is None or max((len(points) for _, points in result.lines(along)), default=0) < LEAST:
        return None
    chosen = _lines(result, along)
    kinds = zip(chosen, _tints(result, along, chosen), _strokes(result, along, chosen), strict=True)
    drawn = [Drawn(label, points, tint, mark, dash) for (label, points), tint, (mark, dash) in kinds]
    return Lines(result, along, drawn, sum(1 for _ in result.lines(along)) - len(drawn))


def load_axis(result: SweepResult) -> int | None:
    """The place of the axis that says how much traffic comes; None without one of three values or more."""
    found = (at for at, axis in enumerate(result.axes) if axis.is_load and len(set(axis.numbers)) >= LEAST)
    return next(found, None)


def _lines(result: SweepResult, along: int) -> list[tuple[str, list[SweepPoint]]]:
    """The lines to draw: of many those that carry most at their knee."""
    found = list(result.lines(along))
    others = [axis for at, axis in enumerate(result.axes) if at != along]
    if len(others) == 1:  # the legend's title says which key it is
        (other,) = (at for at in range(len(result.axes)) if at != along)
        found = [(others[0].labels[points[0].places[other]], points) for _, points in found]
    if len(found) <= MOST_LINES:
        return found

    def carried(line: tuple[str, list[SweepPoint]]) -> float:
        of_line = knee(line[1])
        return -math.inf if of_line is None else of_line.point.estimate("request_throughput").mean

    kept = sorted(range(len(found)), key=lambda place: -carried(found[place]))[:MOST_LINES]
    return [found[place] for place in sorted(kept)]


def _tints(result: SweepResult, along: int, lines: Sequence[tuple[str, list[SweepPoint]]]) -> list[str]:
    """A colour for each line: by the other axis, or of several by the numbers that take the most values."""
    by = coloured_by(result, along)
    if by is None:
        return ramp(len(lines))
    of_axis = colours(result.axes[by])
    return [of_axis[points[0].places[by]] for _, points in lines]


def coloured_by(result: SweepResult, along: int) -> int | None:
    """The axis that colours follow: an ordered one where there is one; None where all points are on one line."""
    others = [at for at, axis in enumerate(result.axes) if at != along and len(axis.labels) > 1]
    return max(others, key=lambda at: (bool(result.axes[at].numbers), len(result.axes[at].labels)), default=None)


def colours(axis: SweepAxis) -> list[str]:
    """A colour for each place of an axis."""
    if not axis.numbers:
        named = styles([(label, label) for label in axis.labels])
        return [named[label].color for label in axis.labels]
    order = sorted(range(len(axis.numbers)), key=lambda place: axis.numbers[place])
    shares = ramp(len(order))
    return [shares[order.index(place)] for place in range(len(order))]


def _strokes(result: SweepResult, along: int, lines: Sequence[tuple[str, list[SweepPoint]]]) -> list[tuple[str, Dash]]:
    """A mark and a dash for each line, by what its colour does not tell; all marks differ where colour tells all."""
    by = coloured_by(result, along)
    rest = [tuple(place for at, place in enumerate(points[0].places) if at not in (along, by)) for _, points in lines]
    kinds = list(dict.fromkeys(rest))
    if len(kinds) < 2:
        return [(MARKS[place % len(MARKS)], "-") for place in range(len(lines))]
    order = [kinds.index(kind) for kind in rest]
    return [(MARKS[place % len(MARKS)], DASHES[place % len(DASHES)]) for place in order]


# The pictures over the load.

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
