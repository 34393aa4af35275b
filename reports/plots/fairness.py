"""Fairness over time: how long the requests of each class waited, and how many are at each replica of a fleet."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.colors import PowerNorm
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.lines import Line2D

from reports.picture import (
    CARD,
    DASHES,
    INK,
    MUTED,
    OTHERS,
    DrawnRuns,
    Picture,
    Plot,
    draw,
    latency_axis,
    plain_numbers,
    run_time_axis,
    shorten,
)
from reports.plots.timeline import shown_until
from reports.units import Clock, clock_for, number, short
from simulator.metrics.latency import ttft_s
from simulator.metrics.series import downsample, row_series
from simulator.metrics.window import Bools
from simulator.results.records import Floats, Ints, Records

CLASS_BUCKETS = 60
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
    edges = np.linspace(0.0, max(last, 1e-9) * (1 + 1e-12), CLASS_BUCKETS + 1)
    found = [waits_by_class(records, edges) for _, records in runs]
    names = list(dict.fromkeys(name for each in found for name in each))
    clock = clock_for(last)

    def paint(figure: Figure) -> str:
        grid = figure.subplots(len(runs), 1, sharex=True, squeeze=False)[:, 0]
        for place, (axes, (label, _), lines) in enumerate(zip(grid, runs, found, strict=True)):
            axes.set_gid(f"run-{place}-classes")
            _panel_of_classes(axes, lines, names, (edges[:-1] + edges[1:]) / 2 / clock.seconds)
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


def _panel_of_classes(axes: Axes, lines: dict[str, Floats], names: Sequence[str], middle: Floats) -> None:
    for place, name in enumerate(names):
        if name in lines:
            look: dict[str, Any] = {"color": COLORS[place], "linewidth": 1.5}
            for part in parts_between_gaps(lines[name]):
                mark = "." if len(part) == 1 else None  # a line through one point cannot be seen
                axes.plot(middle[part], lines[name][part], linestyle=DASHES[place % len(DASHES)], marker=mark, **look)
    if not lines:
        axes.text(0.5, 0.5, "nothing ran", transform=axes.transAxes, ha="center", va="center", color=MUTED)


# The balance of a fleet: the requests at each replica over time.

REPLICA_BUCKETS = 160
MOST_REPLICAS = 48
MAP = "Blues"


def has_replicas(records: Records) -> bool:
    """Return whether there is more than one replica to compare."""
    return records.replicas > 1


def loads(records: Records, end_s: float) -> Floats:
    """Requests in the batch and the queue of each replica: (replicas, buckets), means over time; NaN where it is not.

    A queue before the router is no replica's.
    """
    values = records.rows.running + records.rows.waiting
    found = np.zeros((records.replicas, REPLICA_BUCKETS))
    for replica in range(records.replicas):
        mean = downsample(row_series(records, values, replica), REPLICA_BUCKETS, 0.0, end_s).mean
        found[replica, : len(mean)] = mean
    if records.lives is not None:
        found[~_there(records, end_s)] = np.nan
    return found


def _there(records: Records, end_s: float) -> Bools:
    """Return whether each autoscaled replica is in use, in each bucket."""
    edges = np.linspace(0.0, end_s, REPLICA_BUCKETS + 1)
    there = np.ones((records.replicas, REPLICA_BUCKETS), dtype=np.bool_)
    lives = records.lives
    assert lives is not None
    there[np.unique(lives.replica)] = False
    for replica, start_s, stop_s in zip(lives.replica, lives.start_s, lives.end_s, strict=True):
        stop = np.inf if np.isnan(stop_s) else stop_s
        there[replica] |= (edges[1:] > start_s) & (edges[:-1] < stop)
    return there


def balance(runs: Sequence[tuple[str, Records]]) -> Picture:
    """A panel a run of several replicas: a row a replica, darker where more requests are."""
    several = [(place, label, records) for place, (label, records) in enumerate(runs) if has_replicas(records)]
    end_s = shown_until([(label, records) for _, label, records in several])
    clock = clock_for(end_s)
    found = [loads(records, end_s) for _, _, records in several]
    top = max((float(np.nanmax(each, initial=0.0)) for each in found), default=0.0) or 1.0
    every = -(-max(len(each) for each in found) // MOST_REPLICAS)
    rows = max(-(-len(each) // every) for each in found)

    def paint(figure: Figure) -> str:
        grid = figure.subplots(len(several), 1, sharex=True, squeeze=False)[:, 0]
        for axes, (place, label, _), each in zip(grid, several, found, strict=True):
            axes.set_gid(f"run-{place}-replicas")
            image = _panel_of_replicas(axes, each[::every], end_s, clock, top)
            axes.set_title(shorten(label))
            axes.set_title(_words(each), loc="right", fontsize=8.5, fontweight="normal")
            axes.set_ylabel("replica" if every == 1 else f"replica (1 in {every})")
        run_time_axis(grid[-1], end_s, clock)
        bar = figure.colorbar(image, ax=list(grid), pad=0.01, fraction=0.03)
        bar.outline.set_visible(False)
        plain_numbers(bar.ax.yaxis, bins=4)
        bar.set_label("requests at the replica")
        return (
            "Requests in the batch and the queue of each replica. Shades go by the square root, so "
            "that small loads differ too. Rows of one shade mean an even fleet; a dark row beside light "
            "ones is a replica that the router sends too much to, or that took the long requests. Blank: not there."
        )

    return draw("balance", (10.0, 0.9 + len(several) * max(1.0, 0.35 + min(0.24 * rows, 3.2))), paint)


def _panel_of_replicas(axes: Axes, each: Floats, end_s: float, clock: Clock, top: float) -> AxesImage:
    axes.grid(visible=False)
    axes.set_facecolor(CARD)
    extent = (0.0, end_s / clock.seconds, len(each) - 0.5, -0.5)
    axes.set_yticks(range(0, len(each), max(1, len(each) // 6)))
    return axes.imshow(
        np.ma.masked_invalid(each), aspect="auto", interpolation="nearest", cmap=colormaps[MAP],
        norm=PowerNorm(0.5, 0.0, top), extent=extent,
    )  # fmt: skip


def _words(each: Floats) -> str:
    """The distance between the replicas' means over time, in words."""
    some = [row[np.isfinite(row)] for row in each]
    means = [float(row.mean()) for row in some if len(row)]
    if not means:
        return ""
    ends = [short(round(end, 2)) for end in (min(means), max(means))]
    return f"mean over time: {ends[0]} to {ends[1]} a replica, of {number(len(each))}"


def plots(drawn: DrawnRuns) -> Iterator[Plot]:
    """The waits by class and the load of each replica, where there are several."""
    if drawn.any(has_classes):
        yield Plot(50, "fairness", "Over time", lambda: fairness(drawn.labelled))
    if drawn.any(has_replicas):
        yield Plot(60, "balance", "Over time", lambda: balance(drawn.labelled))
