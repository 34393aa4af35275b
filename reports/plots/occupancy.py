"""KV memory by request: the areas of the largest requests, of all others, and of what is taken and not filled."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import to_rgba
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from reports.axes import plain_numbers
from reports.picture import CARD, HELD, INK, DrawnRuns, Picture, Plot, Style, draw, mix, shorten
from reports.slots import Phase, Stays, stays, window
from reports.units import Clock, clock_for, number
from simulator.metrics.series import downsample, kv_used_blocks
from simulator.results.records import Floats, Records

LARGEST = 6  # requests with an area of their own
SAMPLES = 140  # times in the window
OTHERS_ALPHA = 0.38  # the page shows through: the area is pale on a white one and dim on a dark one


@dataclass(frozen=True, slots=True)
class Occupied:
    """One replica's KV over the sampled times, in blocks: a row a large request, all others, and what is in use."""

    time_s: Floats
    largest: Floats
    rows: Sequence[int]
    others: Floats
    used: Floats


def occupancy(runs: Sequence[tuple[str, Records]], style: Mapping[str, Style]) -> Picture:
    """The first replica's KV memory in the window of the slot Gantt, a panel a run, in shares of the pool."""
    everything = [stays(records) for _, records in runs]
    from_s, to_s = window(everything)
    found = [occupied(records, stay, from_s, to_s) for (_, records), stay in zip(runs, everything, strict=True)]
    clock = clock_for(to_s, from_s)

    def paint(figure: Figure) -> str:
        grid = figure.subplots(len(runs), 1, sharex=True, sharey=True, squeeze=False)[:, 0]
        top = 0.0
        for place, (axes, (label, records), each) in enumerate(zip(grid, runs, found, strict=True)):
            scale = 100.0 / max(records.num_blocks, 1)
            top = max(top, scale * float(max(each.used.max(initial=0.0), _sum(each).max(initial=0.0))))
            axes.set_gid(f"run-{place}-kv")
            _panel(axes, each, scale, style[label].color, clock)
            axes.set_title(shorten(label))
            axes.set_title(_largest_words(records, each), loc="right", fontsize=8.5, fontweight="normal")
        grid[0].set_xlim(from_s / clock.seconds, to_s / clock.seconds)
        grid[0].set_ylim(0.0, min(max(top * 1.08, 1.0), 101.0))
        grid[-1].set_xlabel(f"time since the run began ({clock.unit})")
        colors = [style[label].color for label, _ in runs]
        handles = [
            Patch(facecolor=mix(colors[0], -0.2)),
            Patch(facecolor=to_rgba(colors[0], OTHERS_ALPHA)),
            Patch(facecolor=HELD),
        ]
        names = [f"the {LARGEST} largest requests", "all others", "taken, not filled: reserved, shared or cached"]
        figure.legend(handles, names, loc="outside lower center", ncols=3)
        return (
            "Who holds the KV memory of the first replica, in the window of the slots above. A request's area grows "
            "from its prompt to its last token, evenly between the times of its first and last; the upper edge is the "
            "blocks in use, counted step by step. Few large areas mean that a few long requests fill the memory."
        )

    return draw("kv_by_request", (10.0, 0.9 + 1.35 * len(runs)), paint)


def occupied(records: Records, stay: Stays, from_s: float, to_s: float) -> Occupied:
    """The blocks that each request of the window held at sampled times, and the blocks in use."""
    edges = np.linspace(from_s, to_s, SAMPLES + 1)
    time_s = (edges[:-1] + edges[1:]) / 2
    shown = stay.within(from_s, to_s)
    held = _blocks(records, shown, time_s)
    order = np.argsort(-held.sum(axis=1), kind="stable")
    first, rest = order[:LARGEST], order[LARGEST:]
    buckets = downsample(kv_used_blocks(records, 0), SAMPLES, from_s, to_s)
    used = buckets.mean if len(buckets.mean) else np.zeros(SAMPLES)
    return Occupied(time_s, held[first], shown.row[first].tolist(), held[rest].sum(axis=0), used)


def _blocks(records: Records, stay: Stays, time_s: Floats) -> Floats:
    """KV blocks of each stay at each time: (stays, times)."""
    prompt = records.requests.input_tokens[stay.row][:, None]
    output = records.requests.output_tokens[stay.row][:, None]
    start, done = stay.start_s[:, None], stay.done_s[:, None]
    first = stay.bounds(Phase.DECODE)[0][:, None]
    into = np.clip((time_s - start) / np.maximum(first - start, 1e-12), 0.0, 1.0)
    along = np.clip((time_s - first) / np.maximum(done - first, 1e-12), 0.0, 1.0)
    there = (time_s >= start) & (time_s < stay.end_s[:, None])
    return np.where(there, np.ceil((prompt * into + output * along) / records.block_size), 0.0)


def _sum(each: Occupied) -> Floats:
    return np.asarray(each.largest.sum(axis=0) + each.others)


def _largest_words(records: Records, each: Occupied) -> str:
    if not each.rows:
        return ""
    tokens = records.requests.input_tokens[each.rows] + records.requests.output_tokens[each.rows]
    most = int(np.argmax(tokens))
    return f"largest: request {shorten(records.request_id(each.rows[most]), 20)}, {number(float(tokens[most]))} tokens"


def _panel(axes: Axes, each: Occupied, scale: float, color: str, clock: Clock) -> None:
    time = each.time_s / clock.seconds
    floor = np.zeros(len(time))
    parts = [(row, mix(color, -0.35 + 0.09 * place), 1.0) for place, row in enumerate(each.largest)]
    for row, shade, alpha in [*parts, (each.others, color, OTHERS_ALPHA)]:
        top = floor + row * scale
        axes.fill_between(time, floor, top, facecolor=to_rgba(shade, alpha), edgecolor=CARD, linewidth=0.4, zorder=2)
        floor = top
    above = np.maximum(each.used * scale, floor)
    axes.fill_between(time, floor, above, facecolor=HELD, linewidth=0.0, zorder=2)
    axes.plot(time, each.used * scale, color=INK, linewidth=0.9, zorder=3)
    axes.set_ylabel("KV in use\n(%)")
    plain_numbers(axes.yaxis, bins=4)


def plots(drawn: DrawnRuns) -> Iterator[Plot]:
    """The KV memory of every run by request."""
    yield Plot(20, "kv_by_request", "What the slots did", lambda: occupancy(drawn.labelled, drawn.style))
