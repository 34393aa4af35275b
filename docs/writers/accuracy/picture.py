"""How far each input moves an answer, as a figure: a panel a case, a line an input, three marks a line."""

from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from reports.picture import INK, MUTED, Picture, draw, plain_numbers, shorten

MARKS = {"TTFT": ("#d55e00", "o"), "TPOT": ("#0072b2", "s"), "E2E": ("#009e73", "D")}
Moves = Sequence[tuple[str, Sequence[float]]]
"""What was changed, and the signed fractions by which the means of TTFT, TPOT and end-to-end latency moved."""


def sensitivity_picture(cases: Mapping[str, Moves], name: str = "sensitivity") -> Picture:
    """A panel for each case by its title. Raises ValueError without a case."""
    if not cases:
        raise ValueError("a figure of sensitivities needs at least one case")
    lines = sum(len(moves) for moves in cases.values())

    def paint(figure: Figure) -> str:
        ratios = [max(len(moves), 1) for moves in cases.values()]
        grid = figure.subplots(len(cases), 1, squeeze=False, height_ratios=ratios)[:, 0]
        for axes, (title, moves) in zip(grid, cases.items(), strict=True):
            _paint_case(axes, title, moves)
        grid[-1].set_xlabel("change of the mean (%)")
        handles = [Line2D([], [], color=color, marker=mark, linestyle="") for color, mark in MARKS.values()]
        figure.legend(handles, list(MARKS), loc="outside upper right", ncols=3, labelcolor=INK)
        return "Each input changed alone. What lies far from zero is worth knowing before a server's TTFT is believed."

    return draw(name, (10.0, 0.8 * len(cases) + 0.6 + 0.3 * lines), paint)


def _paint_case(axes: Axes, title: str, moves: Moves) -> None:
    axes.axvline(0.0, color=INK, linewidth=0.9)
    for place, (_, values) in enumerate(moves):
        percents = [100.0 * value for value in values]
        axes.plot([min(*percents, 0.0), max(*percents, 0.0)], [place, place], color=MUTED, linewidth=1.0, zorder=1)
        for value, (color, mark) in zip(percents, MARKS.values(), strict=True):
            axes.plot([value], [place], color=color, marker=mark, markersize=5.5, linestyle="", zorder=3)
    axes.set_yticks(range(len(moves)), [shorten(text) for text, _ in moves])
    axes.set_ylim(len(moves) - 0.4, -0.6)
    axes.grid(visible=False, axis="y")
    axes.margins(x=0.08)
    plain_numbers(axes.xaxis, bins=10)
    axes.set_title(title)
