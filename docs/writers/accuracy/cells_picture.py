"""How far each cell of the scored runs is off, as a figure: a line a cell, from its median error to that of a tenth."""

from collections.abc import Mapping
from itertools import groupby

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from reports.picture import INK, MUTED, Picture, draw, log_numbers

PANELS = {"TPOT": ("tpot", "#0072b2", "s"), "TTFT": ("ttft", "#d55e00", "o")}
FEWEST, LEAST, MOST = 3, 1.0, 200.0
"""The fewest runs of a cell that is drawn, and the ends of the axis, %: what lies beyond stands at the end."""
ENGINES = {"sglang": "SGLang", "trtllm": "TensorRT-LLM", "vllm": "vLLM"}

Cells = Mapping[str, Mapping[str, float]]


def cells_picture(cells: Cells) -> Picture:
    """Draw the cells by engine, the best first: error of TPOT and of TTFT. `cells` are those of figures.json."""
    drawn = {name: found for name, found in cells.items() if found["rows"] >= FEWEST and "tpot_median" in found}
    ordered = sorted(drawn, key=lambda name: (name.split()[0], drawn[name]["tpot_median"]))
    engines = {engine: list(names) for engine, names in groupby(ordered, key=lambda name: name.split()[0])}

    def paint(figure: Figure) -> str:
        heights = [len(names) for names in engines.values()]
        grid = figure.subplots(len(engines), 2, squeeze=False, height_ratios=heights, sharex=True, sharey="row")
        for row, (engine, names) in zip(grid, engines.items(), strict=True):
            for axes, (title, (key, color, mark)) in zip(row, PANELS.items(), strict=True):
                _paint(axes, [drawn[name] for name in names], key, color, mark)
                axes.set_title(f"{ENGINES.get(engine, engine)}: {title}")
            row[0].set_yticks(range(len(names)), [_label(name, drawn[name]["rows"]) for name in names])
            row[0].set_ylim(len(names) - 0.4, -0.6)
        for axes in grid[-1]:
            axes.set_xlabel("error (%), its size")
        marks = [Line2D([], [], color=MUTED, marker="o", linestyle=""),
                 Line2D([], [], color=MUTED, marker="|", markersize=9, linestyle="-")]  # fmt: skip
        words = ["half of the runs are nearer", "nine in ten are nearer"]
        figure.legend(marks, words, loc="outside upper right", ncols=2, labelcolor=INK)
        return "A cell far to the left can be trusted; one whose line reaches far to the right has runs that cannot."

    return draw("served-cells", (10.0, 1.4 + 0.23 * len(ordered) + 0.5 * len(engines)), paint)


def _label(cell: str, rows: float) -> str:
    _, model, gpu, precision = cell.split()
    return f"{model}, {gpu.removesuffix('_sxm').upper()}, {precision} ({rows:.0f})"


def _paint(axes: Axes, cells: list[Mapping[str, float]], key: str, color: str, mark: str) -> None:
    for place, found in enumerate(cells):
        middle, far = (min(max(100.0 * found[f"{key}_{part}"], LEAST), MOST) for part in ("median", "p90"))
        axes.plot([middle, far], [place, place], color=color, linewidth=1.4, alpha=0.55)
        axes.plot([far], [place], color=color, marker="|", markersize=8, linestyle="", clip_on=False)
        axes.plot([middle], [place], color=color, marker=mark, markersize=5, linestyle="", clip_on=False)
    log_numbers(axes.xaxis, MOST / LEAST)
    axes.set_xlim(LEAST, MOST)
    axes.grid(visible=False, axis="y")
