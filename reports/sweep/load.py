"""Latency over the load, with the knee of each line."""

from __future__ import annotations

import math
from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from reports.axes import LOG_FROM, log_numbers, plain_numbers
from reports.style import CARD, INK, Picture, draw, shorten
from reports.sweep.colours import MARKS, colours, ramp
from reports.sweep.knee import RULE, knee
from reports.sweep.points import SweepPoint, SweepResult, column, mean_of, titled
from reports.tables import TableRows
from reports.units import latency, short

SHOWN = ("p99_ttft_ms", "p99_tpot_ms")
MOST_LINES = 10
LEAST = 3  # points of a line


def load_axis(result: SweepResult) -> int | None:
    """The place of the axis that says how much traffic comes; None without one of three values or more."""
    found = (at for at, axis in enumerate(result.axes) if axis.is_load and len(set(axis.numbers)) >= LEAST)
    return next(found, None)


def load_picture(result: SweepResult) -> Picture | None:
    """A panel for each latency, a line for each setting of the other axes; None where no load varies."""
    along = load_axis(result)
    shown = [key for key in SHOWN if result.varies(key)]
    if along is None or not shown or max(len(points) for _, points in result.lines(along)) < LEAST:
        return None
    axis = result.axes[along]
    lines = _lines(result, along)
    hidden = sum(1 for _ in result.lines(along)) - len(lines)
    others = [each for at, each in enumerate(result.axes) if at != along]
    tints = _tints(result, along, lines)

    def paint(figure: Figure) -> str:
        panels = figure.subplots(1, len(shown), squeeze=False)[0]
        for axes, key in zip(panels, shown, strict=True):
            for place, (_, points) in enumerate(lines):
                _paint(axes, points, axis.numbers, along, key, tints[place], MARKS[place % len(MARKS)])
            _finish(axes, result, key, axis.title)
        handles = [
            Line2D([], [], color=tint, marker=MARKS[place % len(MARKS)], markersize=4.5, label=shorten(label, 40))
            for place, ((label, _), tint) in enumerate(zip(lines, tints, strict=True))
        ]
        ring = Line2D([], [], color=INK, marker="o", markersize=9, markerfacecolor="none", linestyle="", label="knee")
        open_mark = Line2D([], [], color=INK, marker="o", markersize=4.5, markerfacecolor=CARD, linestyle="")
        open_mark.set_label("saturated")
        extra = [ring, open_mark] if any(each.is_saturated for each in result.done) else [ring]
        title = ", ".join(each.title for each in others)
        figure.legend(
            handles=[*handles, *extra], loc="outside lower center", ncols=3, title=title if len(lines) > 1 else None
        )
        rest = f" {hidden:,} more lines are in table.csv." if hidden else ""
        bars = " Bars are 95 % intervals over seeds." if result.seeds > 1 else ""
        return f"{RULE}{bars}{rest}"

    rows = math.ceil((len(lines) + 2) / 3)
    return draw("load", (5.6 * len(shown), 3.6 + 0.24 * rows), paint)


def _lines(result: SweepResult, along: int) -> list[tuple[str, list[SweepPoint]]]:
    """The lines to draw: of many those that carry most at their knee."""
    found = list(result.lines(along))
    others = [axis for at, axis in enumerate(result.axes) if at != along]
    if len(others) == 1:  # the legend's title says which key it is
        found = [(others[0].labels[_other(points[0], along)], points) for _, points in found]
    if len(found) <= MOST_LINES:
        return found

    def carried(line: tuple[str, list[SweepPoint]]) -> float:
        of_line = knee(line[1])
        return -math.inf if of_line is None else of_line.point.estimate("request_throughput").mean

    kept = sorted(range(len(found)), key=lambda place: -carried(found[place]))[:MOST_LINES]
    return [found[place] for place in sorted(kept)]


def _other(point: SweepPoint, along: int) -> int:
    return next(place for at, place in enumerate(point.places) if at != along)


def _tints(result: SweepResult, along: int, lines: Sequence[tuple[str, list[SweepPoint]]]) -> list[str]:
    others = [at for at in range(len(result.axes)) if at != along]
    if len(others) == 1:
        of_axis = colours(result.axes[others[0]])
        return [of_axis[points[0].places[others[0]]] for _, points in lines]
    return ramp(len(lines))


def _paint(
    axes: Axes, points: Sequence[SweepPoint], numbers: Sequence[float], along: int, key: str, tint: str, mark: str
) -> None:
    scale = column(key).scale
    known = sorted(
        ((numbers[point.places[along]], point) for point in points if math.isfinite(point.estimate(key).mean)),
        key=lambda pair: pair[0],
    )
    if not known:
        return
    x = [at for at, _ in known]
    found = [point.estimate(key, scale) for _, point in known]
    y = [each.mean for each in found]
    axes.plot(x, y, color=tint, linewidth=1.4, zorder=2)
    spread = [[mean - each.ends[0] for mean, each in zip(y, found, strict=True)]]
    spread.append([each.ends[1] - mean for mean, each in zip(y, found, strict=True)])
    if any(map(any, spread)):
        axes.errorbar(x, y, yerr=spread, fmt="none", ecolor=tint, elinewidth=0.9, capsize=2, zorder=2)
    for at, point in known:
        face = CARD if point.is_saturated else tint
        axes.plot([at], [point.estimate(key, scale).mean], color=tint, marker=mark, markersize=4.5,
                  markerfacecolor=face, linestyle="", zorder=3)  # fmt: skip
    at_knee = knee([point for _, point in known])
    if at_knee is not None:
        at = numbers[at_knee.point.places[along]]
        axes.plot([at], [at_knee.point.estimate(key, scale).mean], color=tint, marker="o", markersize=10,
                  markerfacecolor="none", markeredgewidth=1.4, linestyle="", zorder=4)  # fmt: skip


def _finish(axes: Axes, result: SweepResult, key: str, x_title: str) -> None:
    ends = [end for point in result.done for end in (mean_of(point, key), point.estimate(key).ends[1])]
    limit = result.limits.get(key)
    known = [end for end in (*ends, math.nan if limit is None else limit) if math.isfinite(end)]
    low, high = min(known), max(known)
    if limit is not None:
        axes.axhline(limit, color=INK, linewidth=1.1, linestyle=(0, (2.0, 2.0)), zorder=1.5)
        axes.annotate(f"SLO {latency(limit)}", (0.0, limit), xycoords=("axes fraction", "data"), xytext=(3, 2),
                      textcoords="offset points", ha="left", va="bottom", fontsize=8.0, color=INK, zorder=5,
                      bbox={"facecolor": CARD, "edgecolor": "none", "pad": 0.6, "alpha": 0.85})  # fmt: skip
    if low > 0 and high / low > LOG_FROM:
        log_numbers(axes.yaxis, high / low)
        axes.set_ylim(low / 1.5, high * 1.2)
    else:
        axes.set_ylim(bottom=0)
        plain_numbers(axes.yaxis)
    x0, x1 = axes.dataLim.x0, axes.dataLim.x1
    if x0 > 0 and x1 / x0 > LOG_FROM:
        log_numbers(axes.xaxis, x1 / x0)
    else:
        plain_numbers(axes.xaxis)
    axes.set_title(titled(key))
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
        cells = [_latency(found.point, key) for key in SHOWN]
        carried = short(found.point.estimate("request_throughput").mean)
        body.append((label, where, *([spread] if result.seeds > 1 else []), carried, *cells))
    if not body:
        return None
    seeds = (f"over {result.seeds} seeds",) if result.seeds > 1 else ()
    heads = (column(key).title for key in SHOWN)
    return TableRows(("line", f"knee at {title}", *seeds, "throughput (req/s)", *heads), tuple(body))


def _latency(point: SweepPoint, key: str) -> str:
    mean = point.estimate(key).mean
    return latency(mean) if math.isfinite(mean) else "-"
