"""The report of a search: what was found, what it is worth on traffic it never saw, and which requests pay for it."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from reports.html.pieces import command, figure, paragraphs, section, table, write_page
from reports.picture import (
    INK,
    MUTED,
    Mark,
    Painted,
    Picture,
    Series,
    draw,
    grid_of,
    in_series,
    latency_axis,
    log_numbers,
)
from reports.tables.details import TableRows
from reports.units import latency, short
from reports.verdict.shown_metrics import column_of
from simulator.metrics.summary import METRICS

_OWN, _FOUND = "#d55e00", "#009e73"
_ROUNDS = (MUTED, "#56b4e9", "#0072b2", "#009e73")
METHOD = (
    "Every candidate met the same requests. The race is successive halving: all candidates on a part of the traffic of "
    "the search, the better third on more of it, the better third of these on all of it; later candidates are drawn "
    "near the better ones. The winner alone was run on the held-out traffic. The interval of the difference is paired: "
    "Student's over seeds, or on one trace a bootstrap over blocks of neighbouring requests. A policy is taken only "
    "where it does not hold 0. The bound is what no scheduler can do better (batchlab bound).",
)


@dataclass(frozen=True, slots=True)
class SearchPage:
    """All that the report says.

    `over_prompts` are points over the length of the prompt: mean TTFT in ms and share within the SLO (None without one)
    of the scenario's own policy and of the found one. `trials` has the number of each candidate, its objective in the
    first round, and how many rounds it came to.
    """

    title: str
    subtitle: str
    answer: Sequence[str]
    deploy: str
    settings: TableRows
    held_out: TableRows
    groups: TableRows
    over_prompts: Sequence[tuple[float, tuple[float, float], tuple[float, float] | None]]
    trials: Sequence[tuple[int, float, int]]
    objective: str


def write_report(folder: Path, content: SearchPage) -> None:
    """Write report.html and its pictures. Raises InputError where that cannot be done."""
    payers = [payers_picture(content)] if len(content.over_prompts) > 1 else []
    race = [race_picture(content)] if content.trials else []
    groups = [table(content.groups)] if content.groups.body else []
    sections = [
        section("Answer", paragraphs(content.answer, "verdict"), command("This starts such a server:", content.deploy)),
        section("The best candidate", table(content.settings)),
        section("On traffic that the search never saw", table(content.held_out)),
        section("Which requests pay", *map(figure, payers), *groups),
        section("The race", *map(figure, race)),
        section("Method", paragraphs(METHOD, "notes")),
    ]
    write_page(folder, content.title, content.subtitle, sections, [*payers, *race])


def payers_picture(content: SearchPage) -> Picture:
    """Mean TTFT, and the share within the SLO, over the length of the prompt."""
    points = content.over_prompts
    panels = 2 if all(within is not None for _, _, within in points) else 1

    def paint(canvas: Figure) -> Painted:
        grid = grid_of(canvas, panels, panels)
        marks = []
        for which, (name, color) in enumerate((("own policy", _OWN), ("found", _FOUND))):
            lines = [[(prompt, ttft[which]) for prompt, ttft, _ in points]]
            if panels == 2:
                lines.append([(prompt, 100 * within[which]) for prompt, _, within in points if within is not None])
            for panel, line in enumerate(lines):
                with in_series(grid[panel], which):
                    grid[panel].plot(*zip(*line, strict=True), color=color, marker="o", markersize=4)
                for x, y in line:
                    said = latency(y) if not panel else f"{y:.0f} % within the SLO"
                    marks.append(Mark(grid[panel], x, y, f"{name}, prompts around {x:,.0f} tokens: {said}", which))
        times = [value for _, ttft, _ in points for value in ttft if value == value]
        latency_axis(grid[0].yaxis, min(times), max(times))
        grid[0].set_ylabel("TTFT mean")
        if panels == 2:
            grid[1].set_ylim(0, 102)
            grid[1].set_ylabel("within SLO (%)")
        _prompts(grid, [prompt for prompt, _, _ in points])
        handles = [Line2D([], [], color=color, marker="o", markersize=4) for color in (_OWN, _FOUND)]
        canvas.legend(handles, ["own policy", "found"], loc="outside upper right", ncols=2, labelcolor=INK)
        said = "Held-out requests in ten parts by the length of their prompts. A point is the mean of a part."
        return Painted(said, marks, [Series("own policy", _OWN), Series("found", _FOUND)])

    return draw("which_requests_pay", (10.0 if panels == 2 else 6.0, 3.4), paint)


def _prompts(grid: Sequence[Axes], lengths: Sequence[float]) -> None:
    for axes in grid:
        log_numbers(axes.xaxis, max(lengths) / max(min(lengths), 1.0))
        axes.set_xlabel("prompt (tokens)")


def race_picture(content: SearchPage) -> Picture:
    """The objective of every candidate in the first round, and how far each came."""
    shown = column_of(METRICS[content.objective])
    rounds = max(came for _, _, came in content.trials)

    def paint(canvas: Figure) -> Painted:
        axes = grid_of(canvas, 1, 1)[0]
        marks = []
        for came in range(1, rounds + 1):
            those = [(number, value * shown.scale) for number, value, last in content.trials if last == came]
            color = _ROUNDS[max(len(_ROUNDS) - 1 - (rounds - came), 0)]
            xs, ys = [x for x, _ in those], [y for _, y in those]
            axes.scatter(xs, ys, s=16, color=color, label=f"round {came}")
            for x, y in those:
                marks.append(Mark(axes, x, y, f"candidate {x}: {short(y)} {shown.unit}; {came} rounds"))
        own = next((value for number, value, _ in content.trials if number == 0), None)
        if own is not None:
            axes.axhline(own * shown.scale, color=_OWN, linewidth=1.1, linestyle=(0, (4.0, 2.0)))
        values = [value * shown.scale for _, value, _ in content.trials]
        if shown.better < 0 and min(values) > 0 and max(values) / min(values) > 30:
            log_numbers(axes.yaxis, max(values) / min(values))
        axes.set_xlabel("candidate")
        axes.set_ylabel(f"{shown.title} ({shown.unit})" if shown.unit else shown.title)
        canvas.legend(*axes.get_legend_handles_labels(), loc="outside upper right", ncols=4, labelcolor=INK)
        return Painted(
            "The first round of every candidate, in the order in which they were drawn; the colour is the last round "
            "that each came to. The dashed line is the scenario's own policy.",
            marks,
        )

    return draw("race", (10.0, 3.4), paint)
