"""The report of a sweep: the best points, knees, Pareto fronts, heat maps, and what failed."""

import math
from collections.abc import Sequence
from itertools import combinations
from pathlib import Path

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter, NullLocator

from reports.html import pieces as html
from reports.picture import (
    CARD,
    GRID,
    INK,
    MAP,
    MUTED,
    Mark,
    Painted,
    Picture,
    Series,
    draw,
    grid_of,
    in_series,
    printed,
    scaled_numbers,
    shading,
    shorten,
    text_on,
)
from reports.sweep.load import (
    MARKS,
    colours,
    goodput_picture,
    knee_table,
    load_picture,
    throughput_picture,
    value_words,
)
from reports.sweep.points import (
    Best,
    SweepPoint,
    SweepResult,
    Trade,
    best_points,
    column,
    has_slo,
    keeps_slo,
    mean_of,
    points_named,
    titled,
    trades,
)
from reports.tables.details import TableRows
from reports.units import intervals, number, short
from reports.verdict.shown_metrics import Column, Estimate

# Pareto fronts as pictures, and their points as tables.

_MOST_IN_LEGEND = 12
_APART = 0.035  # of an axis: points of the front that are nearer share a number's place, and the first has it
MOST_FRONT_ROWS = 30
_LAST_NINE = 5e-4  # 100 % has no end of nines: it stands a third of one beyond 99.9 %


def front_pictures(result: SweepResult) -> list[Picture]:
    """A picture for each trade."""
    return [_front_picture(result, trade) for trade in trades(result)]


def _front_picture(result: SweepResult, trade: Trade) -> Picture:
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


def front_table(result: SweepResult, trade: Trade, most: int = MOST_FRONT_ROWS) -> TableRows:
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


# Heat maps: a metric over two axes of a sweep.

METRICS_SHOWN = ("p99_ttft_ms", "p99_tpot_ms", "output_throughput", "slo_attainment", "usd_per_million_output_tokens")
MOST_PANELS = 4
_MOST_TEXTS = 12  # cells a side that still have room for their value
_MOST_PLACES = 40
_LEAST_FILLED = 0.6  # of the cells: points that are scattered make no map
_MOST_PAIRS = 3


def heatmaps(result: SweepResult) -> list[Picture]:
    """A picture for each pair of axes that the points fill, of up to four metrics; of several pairs the first three."""
    said = {key: {printed(mean_of(point, key)) for point in result.done} for key in METRICS_SHOWN}
    shown = [key for key in METRICS_SHOWN if sum(map(math.isfinite, said[key])) > 1][:MOST_PANELS]
    pairs = [pair for pair in combinations(range(len(result.axes)), 2) if _is_filled(result, *pair)]
    return [_heat_map(result, x, y, shown) for y, x in pairs[:_MOST_PAIRS] if shown]


def _is_filled(result: SweepResult, one: int, other: int) -> bool:
    sizes = [len(result.axes[each].labels) for each in (one, other)]
    if min(sizes) < 2 or max(sizes) > _MOST_PLACES:
        return False
    cells = {(point.places[one], point.places[other]) for point in result.points}
    return len(cells) >= _LEAST_FILLED * sizes[0] * sizes[1]


def _heat_map(result: SweepResult, x: int, y: int, shown: Sequence[str]) -> Picture:
    across, up = result.axes[x], result.axes[y]
    columns = min(len(shown), 2)
    rows = math.ceil(len(shown) / columns)
    several = len(result.axes) > 2
    size = (max(5.4, 1.9 + 0.62 * len(across.labels)) * columns, max(3.0, 1.3 + 0.42 * len(up.labels)) * rows)

    def paint(figure: Figure) -> Painted:
        panels = zip(grid_of(figure, len(shown), columns), shown, strict=True)
        marks = [mark for axes, key in panels for mark in _paint(figure, axes, result, x, y, key)]
        best = " Each cell shows the best value over the other keys." if several else ""
        marked = " † saturated: no steady state." if any(point.is_saturated for point in result.done) else ""
        failed = " × failed." if any(point.error for point in result.points) else ""
        seeds = f"Means over {result.seeds} seeds." if result.seeds > 1 else "One seed."
        return Painted(f"{seeds}{best}{marked}{failed}", marks)

    return draw(f"heatmap_{_word(up.title)}_{_word(across.title)}", size, paint)


def _word(title: str) -> str:
    return "".join(letter if letter.isalnum() else "_" for letter in title.partition(" (")[0]).strip("_")


def _paint(figure: Figure, axes: Axes, result: SweepResult, x: int, y: int, key: str) -> list[Mark]:
    """The map of a metric; gives what its cells say."""
    across, up = result.axes[x], result.axes[y]
    xs, ys = _order(across.numbers, len(across.labels)), _order(up.numbers, len(up.labels))
    cells = _cells_by_place(result, x, y, key)
    failed = {(point.places[x], point.places[y]) for point in result.points if point.error}
    known = {place: printed(mean_of(point, key)) for place, point in cells.items()}
    values = np.array([[known.get((a, b), math.nan) for a in xs] for b in ys])
    norm = shading(values)
    worse_is_more = column(key).better < 0
    colours = colormaps[f"{MAP}_r" if worse_is_more else MAP]  # better is lighter
    axes.grid(visible=False)
    axes.set_facecolor(GRID)
    axes.pcolormesh(np.ma.masked_invalid(values), cmap=colours, norm=norm, edgecolors="face", linewidth=0.3)
    if max(values.shape) <= _MOST_TEXTS:
        for row, b in enumerate(ys):
            for place, a in enumerate(xs):
                point, value = cells.get((a, b)), values[row, place]
                color = text_on(colours(norm(value))) if math.isfinite(value) else MUTED
                text = _text(point, value, failed=(a, b) in failed)
                axes.text(place + 0.5, row + 0.5, text, ha="center", va="center", fontsize=7.5, color=color)
    every = max(1, math.ceil(len(xs) / 16))
    axes.set_xticks([place + 0.5 for place in range(0, len(xs), every)], [across.labels[a] for a in xs[::every]])
    axes.set_yticks([place + 0.5 for place in range(len(ys))], [shorten(up.labels[b], 24) for b in ys])
    if max(len(across.labels[a]) for a in xs) > 7:
        axes.tick_params(axis="x", labelrotation=30)
        for label in axes.get_xticklabels():
            label.set_horizontalalignment("right")
    axes.tick_params(length=0)
    axes.set_xlabel(across.title)
    axes.set_ylabel(up.title)
    axes.set_title(titled(key))
    bar = figure.colorbar(ScalarMappable(norm, colours), ax=axes, pad=0.02, fraction=0.05)
    bar.outline.set_visible(False)
    low, high = float(np.nanmin(values)), float(np.nanmax(values))
    if high > low:  # no further than there are values; cells that each have the best of others may be equal
        bar.ax.set_ylim(low, high)
    _ticks(bar.ax, is_log=isinstance(norm, LogNorm))
    return [
        Mark(axes, place + 0.5, row + 0.5, f"{point.label}: {value_words(point, key)}", row)
        for row, b in enumerate(ys)
        for place, a in enumerate(xs)
        if (point := cells.get((a, b))) is not None
    ]


def _ticks(axes: Axes, *, is_log: bool) -> None:
    axes.yaxis.set_major_locator(LogLocator(10.0, subs=(1.0, 2.0, 5.0)) if is_log else MaxNLocator(5))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: short(value)))
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.yaxis.set_minor_locator(NullLocator())
    axes.tick_params(labelsize=7.5)


def _order(numbers: Sequence[float], count: int) -> list[int]:
    """The places of an axis by rising number, or as they were given."""
    return sorted(range(count), key=lambda place: numbers[place]) if numbers else list(range(count))


def _cells_by_place(result: SweepResult, x: int, y: int, key: str) -> dict[tuple[int, int], SweepPoint]:
    """The point of each cell: of several the best by this metric, one that is not saturated before one that is."""
    better = column(key).better or 1

    def rank(point: SweepPoint) -> tuple[bool, float]:
        mean = mean_of(point, key)
        return not point.is_saturated, better * mean if math.isfinite(mean) else -math.inf

    found: dict[tuple[int, int], SweepPoint] = {}
    for point in result.done:
        at = point.places[x], point.places[y]
        if at not in found or rank(point) > rank(found[at]):
            found[at] = point
    return found


def _text(point: SweepPoint | None, value: float, *, failed: bool) -> str:
    if not math.isfinite(value):
        return "×" if failed else "–"
    return f"{short(value)}†" if point is not None and point.is_saturated else short(value)


MOST_ROWS = 200
_TABLE = ("request_throughput", "output_throughput", "slo_attainment", "p99_ttft_ms", "p99_tpot_ms", "p99_e2el_ms",
          "usd_per_million_output_tokens", "saturated")  # fmt: skip
_MORE = ("request_goodput", "p50_ttft_ms", "p50_tpot_ms", "p50_e2el_ms", "p99_itl_ms", "mean_batch_size",
         "batch_occupancy", "kv_utilization_peak", "queue_depth_mean", "preemptions",
         "prefix_cache_hit_rate", "rejected")  # fmt: skip
"""Columns that readers may add."""


def write_sweep_report(folder: Path, result: SweepResult) -> Path:
    """Write the pictures and the page into `folder`; return the path of report.html. Equal sweeps give equal bytes.

    Raises InputError where the folder cannot be written.
    """
    load = [each for make in (load_picture, goodput_picture, throughput_picture) if (each := make(result)) is not None]
    fronts, maps = front_pictures(result), heatmaps(result)
    found = best_points(result)
    rows, hidden = all_table(result)
    left = len(result.done) - MOST_ROWS
    more = [html.text(f"{left:,} more points are in table.csv.")] if left > 0 else []
    sections = [
        html.section(
            "The best points", html.paragraphs(best_words(result, found), "verdict"), html.table(best_table(found))
        ),
        html.section("Over the load", *map(html.figure, load), html.table(knee_table(result))),
        *(
            html.section(trade.title, html.figure(picture), html.table(front_table(result, trade)))
            for trade, picture in zip(trades(result), fronts, strict=True)
        ),
        html.section("Over two keys", *map(html.figure, maps)),
        html.section("Failed points", html.table(failed_table(result))),
        html.section("All points", html.table(rows, sortable=True, hidden=hidden), *more),
        html.section("Study", html.details("The study, as it was run", result.study)),
    ]
    title = f"{result.name}: a sweep of {', '.join(axis.title for axis in result.axes)}"
    return html.write_page(folder, title, _head(result), sections, [*load, *fronts, *maps])


def _head(result: SweepResult) -> str:
    seeds = f"{result.seeds} seeds each" if result.seeds > 1 else "one seed"
    failed = len(result.points) - len(result.done)
    lost = f"; {failed:,} failed" if failed else ""
    return f"{len(result.points):,} points, {seeds}{lost}. A simulation by batchlab."


def best_words(result: SweepResult, found: Sequence[Best]) -> list[str]:
    """The basis of the table of the best points, in words."""
    if not found:
        return ["All points came to the same results." if len(result.done) > 1 else "There is one point only."]
    equal = f"; equal to it: {points_named(found[0].equal)}" if found[0].equal else ""
    words = [f"{found[0].title}: {points_named([found[0].point])}{equal}."]
    if result.seeds > 1:
        words.append(
            "Two points are equal if the paired 95 % interval of their difference over the same seeds holds 0. The "
            "best of many points was also lucky. Before you trust a difference as small as its interval, run it again "
            "with other seeds."
        )
    else:
        words.append("One seed has no interval: points within 2 % are called equal. --seeds 5 tells more.")
    steady = sum(not point.is_saturated for point in result.done)
    if 0 < steady < len(result.done):
        count = len(result.done) - steady
        these = "saturated point is left out: it has" if count == 1 else "saturated points are left out: they have"
        words.append(f"{count:,} {these} no steady state.")
    elif not steady:
        words.append("All points are saturated, so that their latencies depend on how long the runs are.")
    return words


def best_table(found: Sequence[Best], named: int = 5) -> TableRows | None:
    """The best point by each measure, its value with the interval over seeds, and its equals, so many by name."""
    if not found:
        return None
    body = []
    for best in found:
        shown = column(best.key)
        cell = _cells(shown, [best.point.estimate(best.key, shown.scale)])[0]
        equal = "none" if not best.equal else points_named(best.equal, named)
        body.append((best.title, best.point.label, f"{cell} {shown.unit}".rstrip(), equal))
    return TableRows(("best by", "point", "value", "equal to it"), tuple(body), text_columns=4)


def failed_table(result: SweepResult) -> TableRows | None:
    """The points that failed, with the error of their first failed seed."""
    body = tuple((point.label, point.error) for point in result.points if point.error)
    return TableRows(("point", "error"), body[:MOST_ROWS], text_columns=2) if body else None


def all_table(result: SweepResult) -> tuple[TableRows, list[int]]:
    """Every point with what varies among its metrics, and the columns that are hidden until readers choose them."""
    first = [key for key in _TABLE if result.known(key)]
    keys = first + [key for key in _MORE if key not in first and result.varies(key)]
    points = result.done[:MOST_ROWS]
    columns = [_column(points, column(key), result) for key in keys]
    body = tuple((point.label, *cells) for point, *cells in zip(points, *columns, strict=True))
    return TableRows(("point", *map(titled, keys)), body), list(range(1 + len(first), 1 + len(keys)))


def _column(points: Sequence[SweepPoint], shown: Column, result: SweepResult) -> list[str]:
    if shown.flag:
        return ["yes" if point.is_saturated else "no" for point in points]
    return _cells(shown, [point.estimate(shown.key, shown.scale) for point in points])


def _cells(shown: Column, found: Sequence[Estimate]) -> list[str]:
    places = shown.decimals(each.mean for each in found)
    behind = intervals([(each.mean, each.low, each.high) for each in found], places)
    return [f"{number(each.mean, places)} {spread}".rstrip() for each, spread in zip(found, behind, strict=True)]
