"""The report of a plan: the answer, the table, and how far each limit is used at every rate that was run."""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from reports.html.pieces import command, figure, paragraphs, section, table, write_page
from reports.picture import (
    GRID,
    INK,
    MAP,
    MUTED,
    OTHERS,
    Mark,
    Painted,
    Picture,
    Series,
    draw,
    folded,
    grid_of,
    in_series,
    printed,
    scaled_numbers,
    shading,
    shorten,
    text_on,
)
from reports.tables.details import TableRows
from reports.units import latency, short
from reports.verdict.shown_metrics import column_of
from simulator.metrics.summary import METRICS

# A plan over two of its settings: what was looked for and the cost of each pair, as heat maps.

Cells = Mapping[tuple[int, int], float]


@dataclass(frozen=True, slots=True)
class OverKeys:
    """Values by their places on two settings, `x` and `y`; a place without one was refused or has no answer.

    `best` has the title and the direction of what the first map shows: more (1) or less (-1) is better; `values` are
    its cells. `costs` are in USD per million output tokens. `best_of_others` says that other settings differ too, of
    which each cell has the best.
    """

    x: str
    x_labels: Sequence[str]
    y: str
    y_labels: Sequence[str]
    best: tuple[str, int]
    values: Cells
    costs: Cells
    best_of_others: bool = False


def over_keys_picture(grid: OverKeys) -> Picture:
    """A map for each of the two that has values; lighter is better."""
    title, better = grid.best
    both = ((title, grid.values, better), ("cost (USD/M output tokens)", grid.costs, -1))
    maps = [(title, cells, better) for title, cells, better in both if cells]
    size = (max(5.0, 1.9 + 0.7 * len(grid.x_labels)) * max(len(maps), 1), max(3.2, 1.3 + 0.45 * len(grid.y_labels)))

    def paint(figure: Figure) -> Painted:
        panels = figure.subplots(1, max(len(maps), 1), squeeze=False)[0]
        marks = [mark for axes, each in zip(panels, maps, strict=False) for mark in _paint(axes, grid, *each)]
        others = " Each cell has the best over the other settings." if grid.best_of_others else ""
        said = "Lighter is better. A dash: limits not kept, load not carried, or settings that do not fit."
        return Painted(said + others, marks)

    return draw("settings", size, paint)


def _paint(axes: Axes, grid: OverKeys, title: str, cells: Cells, better: int) -> list[Mark]:
    """The map of a quantity; gives what its cells say."""
    values = np.full((len(grid.y_labels), len(grid.x_labels)), np.nan)
    for (x, y), value in cells.items():
        values[y, x] = printed(float(f"{value:.3g}"))
    norm = shading(values)
    colours = colormaps[MAP if better > 0 else f"{MAP}_r"]
    axes.grid(visible=False)
    axes.set_facecolor(GRID)
    axes.pcolormesh(np.ma.masked_invalid(values), cmap=colours, norm=norm, edgecolors="face", linewidth=0.3)
    for (row, column), value in np.ndenumerate(values):
        known_here = math.isfinite(value)
        color = text_on(colours(norm(value))) if known_here else MUTED
        text = short(value) if known_here else "–"
        axes.text(column + 0.5, row + 0.5, text, ha="center", va="center", fontsize=8.0, color=color)
    axes.set_xticks(np.arange(len(grid.x_labels)) + 0.5, [shorten(label, 20) for label in grid.x_labels])
    axes.set_yticks(np.arange(len(grid.y_labels)) + 0.5, [shorten(label, 20) for label in grid.y_labels])
    axes.tick_params(length=0)
    axes.set_xlabel(grid.x)
    axes.set_ylabel(grid.y)
    axes.set_title(title)
    marks = []
    for x, y in sorted(cells, key=lambda cell: (cell[1], cell[0])):
        words = f"{grid.x} {grid.x_labels[x]}, {grid.y} {grid.y_labels[y]}: {title} {short(values[y, x])}"
        marks.append(Mark(axes, x + 0.5, y + 0.5, words, y))
    return marks


# The report of a plan.

MOST_PANELS = 6
_COLORS = ("#0072b2", "#d55e00", "#009e73", *OTHERS)
_TITLE = 52  # characters in a line
_NEAR = 2.5  # times the largest rate that was run
_FAR = 8.0  # times the limit: what is beyond is drawn at the edge
Points = Sequence[tuple[float, float]]


@dataclass(frozen=True, slots=True)
class Searched:
    """A candidate's runs: for each limit, and each seed, the rates with the share of the limit that was used.

    The share is 1 at the limit. `interval` is low, value and high of its largest rate; None where there is none.
    `asked` is the load to be carried. No scheduler serves more than `at_best` for ever.
    """

    label: str
    used: Mapping[str, Sequence[Points]]
    interval: tuple[float, float, float] | None = None
    asked: float | None = None
    at_best: float | None = None


@dataclass(frozen=True, slots=True)
class PlanPage:
    """All that the report says."""

    title: str
    subtitle: str
    answer: str
    below: Sequence[str]
    rows: TableRows
    remarks: Sequence[str] = ()
    searched: Sequence[Searched] = field(default_factory=tuple)
    over_keys: OverKeys | None = None


_DEPLOY = "On each replica, this starts the server:"
METHOD = (
    "Rates are requests per second of all replicas together. A rate holds where every limit does and the queue does "
    "not keep growing. The largest is bracketed, and the bracket narrowed to 2 % or to a fifth of the interval, with "
    "equal requests at every rate and for every candidate. Its interval at 95 % is Student's over the seeds of drawn "
    "traffic; of a single trace it is a block bootstrap of the requests at the rates that were run. USD for a million "
    "output tokens are those of the run at the rate shown. 'load +' is how much more than the load fits; '=' marks "
    "what cannot be told from the best.",
)


def write_report(folder: Path, content: PlanPage) -> None:
    """Write report.html and its picture. Raises InputError where that cannot be done."""
    pictures = [search_picture(content.searched)] if any(each.used for each in content.searched) else []
    maps = [] if content.over_keys is None else [over_keys_picture(content.over_keys)]
    below = [each for each in content.below if not each.startswith("deploy:")]
    line = next((each.removeprefix("deploy:").strip() for each in content.below if each not in below), "")
    sections = [
        section("Answer", paragraphs([content.answer], "verdict"), paragraphs(below, "notes"), command(_DEPLOY, line)),
        section("Candidates", table(content.rows, sortable=True)),
        section("Over two settings", *map(figure, maps)),
        section("How each limit is used", *map(figure, pictures)),
        section("Remarks", paragraphs(list(content.remarks), "notes")),
        section("Method", paragraphs(METHOD, "notes")),
    ]
    write_page(folder, content.title, content.subtitle, sections, [*pictures, *maps])


def search_picture(searched: Sequence[Searched]) -> Picture:
    """A panel for each of the first candidates: the share of each limit against the rate."""
    shown = [
        replace(each, used={limit_words(name): points for name, points in each.used.items()})
        for each in searched
        if each.used
    ][:MOST_PANELS]
    names = list(dict.fromkeys(name for each in shown for name in each.used))
    colors = {name: _COLORS[index % len(_COLORS)] for index, name in enumerate(names)}
    across = min(2, len(shown))

    def paint(canvas: Figure) -> Painted:
        grid = grid_of(canvas, len(shown), across)
        marks = [mark for axes, each in zip(grid, shown, strict=True) for mark in _panel(axes, each, colors)]
        handles = [Line2D([], [], color=color, marker="o", markersize=4) for color in colors.values()]
        canvas.legend(handles, names, loc="outside upper right", ncols=min(len(names), 4), labelcolor=INK)
        said = (
            "Each point is a run, each line a seed. Above the dashed line a limit is missed. Grey band: 95 % interval "
            "of the largest rate. Grey line: the answer, the rate in the table."
        )
        if any(_near(each) is not None for each in shown):
            said += " The vertical dashed line is the upper bound for any scheduler."
        return Painted(said, marks, [Series(name, color) for name, color in colors.items()])

    lines = max(folded(each.label, _TITLE).count("\n") for each in shown)
    return draw("rates", (10.0, (2.7 + 0.2 * lines) * -(-len(shown) // across) + 0.5), paint)


def _near(one: Searched) -> float | None:
    """The rate at best, unless it is so far off that nothing could be read beside it."""
    rates = [rate for lines in one.used.values() for points in lines for rate, _ in points]
    return None if one.at_best is None or one.at_best > _NEAR * max(rates) else one.at_best


def limit_words(text: str) -> str:
    """A limit as people say it: `chat:p99_ttft_ms<=500` is TTFT p99 of chat ≤ 500 ms."""
    found = re.fullmatch(r"(?:(?P<name>.+):)?(?P<key>\w+)\s*(?P<sign><=|>=)\s*(?P<value>[-+.\deE]+)", text)
    if found is None or found["key"] not in METRICS:
        return shorten(text)
    shown, sign = column_of(METRICS[found["key"]]), "≤" if found["sign"] == "<=" else "≥"
    value = float(found["value"]) * shown.scale
    size = latency(value) if shown.unit == "ms" else f"{short(value)} {shown.unit}".rstrip()
    return shorten(f"{shown.title}{' of ' + found['name'] if found['name'] else ''} {sign} {size}")


def _panel(axes: Axes, one: Searched, colors: Mapping[str, str]) -> list[Mark]:
    """A candidate's search; gives what its runs say."""
    axes.axhline(1.0, color=INK, linewidth=1.1, linestyle=(0, (4.0, 2.0)), zorder=6)
    if one.interval is not None:
        low, value, high = one.interval
        axes.axvspan(low, high, color=MUTED, alpha=0.18, linewidth=0)
        axes.axvline(value, color=MUTED, linewidth=1.1)
    if one.asked is not None:
        axes.axvline(one.asked, color=INK, linewidth=1.1, linestyle=(0, (1.2, 1.3)))
    at_best = _near(one)
    if at_best is not None:
        axes.axvline(at_best, color=INK, linewidth=1.1, linestyle=(0, (6.0, 3.0)), gid="bound")
    rates = [rate for lines in one.used.values() for points in lines for rate, _ in points]
    marks: list[Mark] = []
    for name, lines in one.used.items():
        limit = list(colors).index(name)
        width, size = (1.8, 3.5) if len(lines) == 1 else (1.0, 2.5)
        for points in lines:
            ordered = sorted(points)
            shares = [min(max(share, 1 / _FAR), _FAR) for _, share in ordered]
            rising = [rate for rate, _ in ordered]
            with in_series(axes, limit):
                axes.plot(rising, shares, color=colors[name], marker="o", markersize=size, linewidth=width)
            for (rate, share), at in zip(ordered, shares, strict=True):
                told = f"{one.label} at {short(rate)} requests/s: {short(100 * share)} % of {name}"
                marks.append(Mark(axes, rate, at, told, limit))
    axes.set_yscale("log")
    axes.set_ylim(1 / _FAR, _FAR)
    axes.set_yticks([0.25, 0.5, 1, 2, 4], ["1/4", "1/2", "limit", "2 x", "4 x"])
    axes.minorticks_off()
    scaled_numbers(axes.xaxis, min(rates), max(*rates, at_best or 0.0))
    axes.set_xlabel("requests/s")
    axes.set_title(folded(one.label, _TITLE))
    return marks
