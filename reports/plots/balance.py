"""The balance of a fleet: the requests at each replica over time."""

from collections.abc import Iterator, Sequence

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.colors import PowerNorm
from matplotlib.figure import Figure
from matplotlib.image import AxesImage

from reports.axes import plain_numbers, run_time_axis
from reports.picture import CARD, DrawnRuns, Picture, Plot, draw, shorten
from reports.plots.timeline import shown_until
from reports.units import Clock, clock_for, number, short
from simulator.metrics.series import downsample, row_series
from simulator.metrics.window import Bools
from simulator.results.records import Floats, Records

BUCKETS = 160
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
    found = np.zeros((records.replicas, BUCKETS))
    for replica in range(records.replicas):
        mean = downsample(row_series(records, values, replica), BUCKETS, 0.0, end_s).mean
        found[replica, : len(mean)] = mean
    if records.lives is not None:
        found[~_there(records, end_s)] = np.nan
    return found


def _there(records: Records, end_s: float) -> Bools:
    """Return whether each autoscaled replica is in use, in each bucket."""
    edges = np.linspace(0.0, end_s, BUCKETS + 1)
    there = np.ones((records.replicas, BUCKETS), dtype=np.bool_)
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
            image = _panel(axes, each[::every], end_s, clock, top)
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


def _panel(axes: Axes, each: Floats, end_s: float, clock: Clock, top: float) -> AxesImage:
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
    """The load of each replica, where there are several."""
    if drawn.any(has_replicas):
        yield Plot(60, "balance", "Over time", lambda: balance(drawn.labelled))
