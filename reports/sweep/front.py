"""Pareto fronts as pictures, and their points as tables."""

import math
from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from reports.axes import scaled_numbers
from reports.picture import CARD, INK, MUTED, Mark, Painted, Picture, Series, draw, in_series, shorten
from reports.sweep.load import MARKS, colours
from reports.sweep.points import SweepPoint, SweepResult, Trade, has_slo, keeps_slo, trades
from reports.tables.details import TableRows
from reports.units import short

_MOST_IN_LEGEND = 12
_APART = 0.035  # of an axis: points of the front that are nearer share a number's place, and the first has it
MOST_ROWS = 30
_LAST_NINE = 5e-4  # 100 % has no end of nines: it stands a third of one beyond 99.9 %


def front_pictures(result: SweepResult) -> list[Picture]:
    """A picture for each trade."""
    return [_picture(result, trade) for trade in trades(result)]


def _picture(result: SweepResult, trade: Trade) -> Picture:
    front = trade.front(result.eligible)
    by = _coloured(result)

    def paint(figure: Figure) -> Painted:
        axes = figure.subplots()
        handles = []
        if by is None:
            _scatter(axes, result.done, trade, MUTED, "o")
        else:
            axis = result.axes[by]
            for place, tint in enumerate(colours(axis)):
                mark = MARKS[place % len(MARKS)]
                with in_series(axes, place):
                    _scatter(axes, [point for point in result.done if point.places[by] == place], trade, tint, mark)
                label = shorten(axis.labels[place])
                handles.append(Line2D([], [], color=tint, marker=mark, markersize=5, linestyle="", label=label))
        x, y = [trade.x(point) for point in front], [trade.y(point) for point in front]
        axes.plot(x, y, color=INK, linewidth=1.2, linestyle=(0, (4.0, 2.0)), zorder=1.8)
        handles.append(Line2D([], [], color=INK, linewidth=1.2, linestyle=(0, (4.0, 2.0)), label="front"))
        if any(point.is_saturated for point in result.done):
            hollow = Line2D([], [], color=MUTED, marker="o", markersize=5, markerfacecolor=CARD, linestyle="")
            hollow.set_label("saturated")
            handles.append(hollow)
        _scale(axes, trade, result.done)
        _numbers(axes, front, trade)
        title = None if by is None else result.axes[by].title
        columns = 1 if len(handles) <= _MOST_IN_LEGEND else 2
        figure.legend(handles=handles, loc="outside right upper", title=title, ncols=columns)
        axes.set_title(trade.title)
        axes.set_xlabel(trade.x_title)
        axes.set_ylabel(trade.y_title)
        said = (
            "Points on the front are numbered as in the table, the first of those that lie together: no other is "
            "better in both. Saturated points are not on it, unless all are."
        )
        return Painted(said, _marks(axes, result, trade, by), _series(result, by))

    return draw(f"front_{trade.name}", (8.6, 4.4), paint)


def _marks(axes: Axes, result: SweepResult, trade: Trade, by: int | None) -> list[Mark]:
    """Each point with both of its values."""
    marks = []
    for point in result.done:
        x, y = trade.x(point), trade.y(point)
        saturated = ", saturated" if point.is_saturated else ""
        words = f"{point.label}: {short(x)} {trade.x_title}, {short(y)} {trade.y_title}{saturated}"
        marks.append(Mark(axes, x, y, words, 0 if by is None else point.places[by]))
    return marks


def _series(result: SweepResult, by: int | None) -> list[Series]:
    if by is None:
        return []
    axis = result.axes[by]
    return [Series(f"{axis.title} {label}", tint) for label, tint in zip(axis.labels, colours(axis), strict=True)]


def _coloured(result: SweepResult) -> int | None:
    """The axis that colours tell apart: of several the first that is not the load, and has at most a dozen places."""
    few = [at for at, axis in enumerate(result.axes) if 1 < len(axis.labels) <= _MOST_IN_LEGEND]
    return next((at for at in few if not result.axes[at].is_load), few[0] if few else None)


def _scatter(axes: Axes, points: Sequence[SweepPoint], trade: Trade, tint: str, mark: str) -> None:
    for point in points:
        x, y = trade.x(point), trade.y(point)
        if math.isfinite(x) and math.isfinite(y):
            face = CARD if point.is_saturated else tint
            (dot,) = axes.plot([x], [y], color=tint, marker=mark, markersize=5, markerfacecolor=face, linestyle="")
            dot.set(zorder=3, clip_on=False)


def _nines(axes: Axes, lowest: float) -> None:
    """Shares from `lowest` to 100 %, each further nine as wide as the one before, and all above 99.9 at the end."""
    axes.set_xscale("function", functions=(
        lambda share: -np.log10(np.maximum(100.0 - share, 0.0) / 100.0 + _LAST_NINE),
        lambda nines: 100.0 * (1.0 + _LAST_NINE - 10.0 ** -np.asarray(nines)),
    ))  # fmt: skip
    ticks = [tick for tick in (0.0, 50.0, 90.0, 95.0, 99.0, 99.9, 100.0) if tick >= lowest or tick >= 90.0]
    axes.set_xlim(min(lowest - 5.0, 80.0), 100.0)
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])


def _scale(axes: Axes, trade: Trade, points: Sequence[SweepPoint]) -> None:
    for axis, of in ((axes.xaxis, trade.x), (axes.yaxis, trade.y)):
        values = [value for point in points if math.isfinite(value := of(point))]
        scaled_numbers(axis, min(values), max(values))
    axes.margins(0.07)
    if trade.x_nines:
        _nines(axes, min(value for point in points if math.isfinite(value := trade.x(point))))


def _numbers(axes: Axes, front: Sequence[SweepPoint], trade: Trade) -> None:
    """The places in the table beside the points of the front, on the side away from the other points."""
    axes.autoscale_view()
    transform = (axes.transData + axes.transAxes.inverted()).transform
    taken: list[tuple[float, float]] = []
    for place, point in enumerate(front, start=1):
        x, y = transform((trade.x(point), trade.y(point))).tolist()
        if any(abs(x - a) < _APART and abs(y - b) < _APART for a, b in taken):
            continue
        taken.append((x, y))
        axes.annotate(
            str(place),
            (trade.x(point), trade.y(point)),
            xytext=(5 * trade.x_better, 4 * trade.y_better),
            textcoords="offset points",
            ha="left" if trade.x_better > 0 else "right",
            va="bottom" if trade.y_better > 0 else "top",
            fontsize=8.0,
            color=INK,
        )


def front_table(result: SweepResult, trade: Trade, most: int = MOST_ROWS) -> TableRows:
    """The points of a front as the picture numbers them; where there is an SLO, whether each keeps it."""
    front = trade.front(result.eligible)
    judged = has_slo(front)
    body = [
        (str(place), point.label, *([_kept(point)] if judged else []), short(trade.x(point)), short(trade.y(point)))
        for place, point in enumerate(front[:most], start=1)
    ]
    head = ("", "point", *(["SLO"] if judged else []), trade.x_title, trade.y_title)
    if len(front) > most:
        body.append(("", f"and {len(front) - most:,} more", *[""] * (len(head) - 2)))
    return TableRows(head, tuple(body), text_columns=3 if judged else 2)


def _kept(point: SweepPoint) -> str:
    return "kept" if keeps_slo(point) else "missed"
