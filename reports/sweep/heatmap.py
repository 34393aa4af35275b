"""Heat maps: a metric over two axes of a sweep."""

import math
from collections.abc import Sequence
from itertools import combinations

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter, NullLocator

from reports.axes import grid_of, printed, shading, text_on
from reports.picture import GRID, MAP, MUTED, Mark, Painted, Picture, draw, shorten
from reports.sweep.load import value_words
from reports.sweep.points import SweepPoint, SweepResult, column, mean_of, titled
from reports.units import short

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
    return [_picture(result, x, y, shown) for y, x in pairs[:_MOST_PAIRS] if shown]


def _is_filled(result: SweepResult, one: int, other: int) -> bool:
    sizes = [len(result.axes[each].labels) for each in (one, other)]
    if min(sizes) < 2 or max(sizes) > _MOST_PLACES:
        return False
    cells = {(point.places[one], point.places[other]) for point in result.points}
    return len(cells) >= _LEAST_FILLED * sizes[0] * sizes[1]


def _picture(result: SweepResult, x: int, y: int, shown: Sequence[str]) -> Picture:
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
    cells = _cells(result, x, y, key)
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


def _cells(result: SweepResult, x: int, y: int, key: str) -> dict[tuple[int, int], SweepPoint]:
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
