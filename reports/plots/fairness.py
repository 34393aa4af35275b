"""Classes over time: how long the requests of each class waited for their first token, by the time they came."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from reports.axes import latency_axis, run_time_axis
from reports.picture import DASHES, INK, MUTED, OTHERS, DrawnRuns, Picture, Plot, draw, shorten
from reports.units import clock_for
from simulator.metrics.latency import ttft_s
from simulator.results.records import Floats, Ints, Records

BUCKETS = 60
GAP = 3  # so many buckets without a request of the class: no line goes across
MOST_CLASSES = 7
COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", *OTHERS)


def has_classes(records: Records) -> bool:
    """Return whether there are classes to compare, and few enough to be told apart."""
    return 1 < len(np.unique(records.requests.class_index)) <= MOST_CLASSES


def waits_by_class(records: Records, edges: Floats) -> dict[str, Floats]:
    """The mean TTFT (ms) of each class's requests that came between two of the edges; NaN where none did."""
    requests, took_ms = records.requests, 1e3 * ttft_s(records)
    found = {}
    for index in np.unique(requests.class_index).tolist():
        mine = (requests.class_index == index) & ~np.isnan(took_ms)
        count, _ = np.histogram(requests.arrival_s[mine], edges)
        total, _ = np.histogram(requests.arrival_s[mine], edges, weights=took_ms[mine])
        mean = np.full(len(count), np.nan)
        np.divide(total, count, out=mean, where=count > 0)
        found[records.class_names[index]] = mean
    return found


def parts_between_gaps(line: Floats) -> list[Ints]:
    """The places of the known values, in parts: between two parts lie `GAP` unknown values or more."""
    known = np.flatnonzero(np.isfinite(line))
    return [part for part in np.split(known, np.flatnonzero(np.diff(known) > GAP) + 1) if len(part)]


def fairness(runs: Sequence[tuple[str, Records]]) -> Picture:
    """A panel a run, a line a class, over the time of arrival."""
    last = max(float(records.requests.arrival_s.max(initial=0.0)) for _, records in runs)
    edges = np.linspace(0.0, max(last, 1e-9) * (1 + 1e-12), BUCKETS + 1)
    found = [waits_by_class(records, edges) for _, records in runs]
    names = list(dict.fromkeys(name for each in found for name in each))
    clock = clock_for(last)

    def paint(figure: Figure) -> str:
        grid = figure.subplots(len(runs), 1, sharex=True, squeeze=False)[:, 0]
        for place, (axes, (label, _), lines) in enumerate(zip(grid, runs, found, strict=True)):
            axes.set_gid(f"run-{place}-classes")
            _panel(axes, lines, names, (edges[:-1] + edges[1:]) / 2 / clock.seconds)
            axes.set_title(shorten(label))
            axes.set_ylabel("mean TTFT")
            values = np.concatenate([np.zeros(0), *lines.values()])
            known = values[np.isfinite(values)]
            ends = (float(known.min()), float(known.max())) if len(known) else (0.0, 1.0)
            latency_axis(axes.yaxis, *ends, around=1.3, above=1.08, most=4, bins=4)
        run_time_axis(grid[-1], float(edges[-1]), clock, "time of arrival")
        kinds = [(COLORS[place], DASHES[place % len(DASHES)]) for place in range(len(names))]
        handles = [Line2D([], [], color=color, linestyle=dash) for color, dash in kinds]
        told = [shorten(name, 30) for name in names]
        figure.legend(handles, told, loc="outside upper left", ncols=min(len(names), 5), labelcolor=INK)
        return (
            "The mean time to first token of the requests of each class, by when they came. Lines that stay together "
            "mean that classes share a queue's waits alike; lines that part under load show who pays for it. Every run "
            "has its own scale. A line ends where no request of its class comes for a while."
        )

    return draw("fairness", (10.0, 0.9 + 1.4 * len(runs)), paint)


def _panel(axes: Axes, lines: dict[str, Floats], names: Sequence[str], middle: Floats) -> None:
    for place, name in enumerate(names):
        if name in lines:
            look: dict[str, Any] = {"color": COLORS[place], "linewidth": 1.5}
            for part in parts_between_gaps(lines[name]):
                mark = "." if len(part) == 1 else None  # a line through one point cannot be seen
                axes.plot(middle[part], lines[name][part], linestyle=DASHES[place % len(DASHES)], marker=mark, **look)
    if not lines:
        axes.text(0.5, 0.5, "nothing ran", transform=axes.transAxes, ha="center", va="center", color=MUTED)


def plots(drawn: DrawnRuns) -> Iterator[Plot]:
    """The waits by class, where there are several."""
    if drawn.any(has_classes):
        yield Plot(50, "fairness", "Over time", lambda: fairness(drawn.labelled))
