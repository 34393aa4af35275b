"""A plan over two of its settings: what was looked for and the cost of each pair, as heat maps."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from reports.drawing.marks import Mark, Painted
from reports.drawing.shades import printed, shading, text_on
from reports.drawing.style import GRID, MAP, MUTED, Picture, draw, shorten
from reports.units import short

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
