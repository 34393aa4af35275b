"""The timeline: queue, batch, KV memory, step time and preemptions over time; and KV memory by request."""

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import to_rgba
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import NullLocator

from reports.picture import (
    CARD,
    HELD,
    INK,
    LOG_FROM,
    MUTED,
    DrawnRuns,
    Picture,
    Plot,
    Style,
    coinciding,
    draw,
    log_numbers,
    mix,
    plain_numbers,
    run_time_axis,
    said,
    shorten,
)
from reports.slots import Phase, Stays, stays, window
from reports.units import Clock, clock_for, number, short
from simulator.metrics.series import (
    Points,
    StepFunction,
    downsample,
    kv_used_blocks,
    preemptions,
    queue_depth,
    replicas_there,
    running,
    step_time,
)
from simulator.metrics.window import run_end_s
from simulator.results.records import Floats, Records

BUCKETS = 240
FLATTENED = 12.0  # times the next largest: a run that high would press all others onto the axis
STEP_BUCKETS = 90  # fewer, so that the largest of each make a line


@dataclass(frozen=True, slots=True)
class Band:
    """A series as it is drawn, one entry a bucket; times in seconds."""

    time_s: Floats
    low: Floats
    mean: Floats
    high: Floats


@dataclass(frozen=True, slots=True)
class Strip:
    """One panel: what its axis says, a band for each label, and a line at a limit (or none)."""

    title: str
    bands: Mapping[str, Band]
    limit: float | None = None
    peaks_only: bool = False  # a thin line at the largest value, where bands would cover each other


def band(series: StepFunction, end_s: float, scale: float = 1.0, buckets: int = BUCKETS) -> Band:
    """Mean, smallest and largest value in each of a few hundred stretches of [0, end_s]."""
    upper = downsample(replace(series, value=series.value * scale), buckets, 0.0, end_s)
    lower = downsample(replace(series, value=series.value * -scale), buckets, 0.0, end_s)  # its peaks are the minima
    return Band(upper.middle_s, -lower.peak, upper.mean, upper.peak)


def step_band(steps: Points, end_s: float, scale: float = 1.0, buckets: int = STEP_BUCKETS) -> Band:
    """The band of the steps that began in each stretch. Where none began, the step in flight; NaN where none was."""
    edges = np.linspace(0.0, end_s, buckets + 1)
    middle = (edges[:-1] + edges[1:]) / 2
    before = np.searchsorted(steps.time_s, middle, side="right") - 1
    started = np.append(steps.time_s, np.inf)[before]
    took = np.append(steps.value, np.nan)[before]
    in_flight = np.where(started + took >= middle, took, np.nan) * scale
    upper = downsample(replace(steps, value=steps.value * scale), buckets, 0.0, end_s)
    lower = downsample(replace(steps, value=steps.value * -scale), buckets, 0.0, end_s)
    found = Band(middle, in_flight.copy(), in_flight.copy(), in_flight.copy())
    place = np.searchsorted(edges, upper.middle_s) - 1
    for column, values in ((found.low, -lower.peak), (found.mean, upper.mean), (found.high, upper.peak)):
        column[place] = values
    return found


def shown_until(runs: Sequence[tuple[str, Records]]) -> float:
    """The end of the time axis: that of the longest run, unless runs that go on would squeeze all others into a corner.

    Then it is twice the end of the others or of the arrivals, whichever is later.
    """
    ends = sorted(run_end_s(records) for _, records in runs)
    if len(ends) < 2:
        return max(ends, default=0.0)
    arrivals = max((float(r.requests.arrival_s.max()) for _, r in runs if len(r.requests.row)), default=0.0)
    enough = 2.0 * max(ends[0], arrivals)
    for end in ends[1:]:
        if end > 1.25 * enough > 0.0:
            return enough
        enough = max(enough, 2.0 * end)
    return ends[-1]


def strips(runs: Sequence[tuple[str, Records]], buckets: int | None = None) -> list[Strip]:
    """The panels for these runs; the one of preemptions only where there was one. `buckets` stretches of time, if not
    as many as a picture shows."""
    fine, coarse = buckets or BUCKETS, buckets or STEP_BUCKETS
    end_s = shown_until(runs)
    if not any(records.num_steps for _, records in runs):
        return []
    slots = {records.slots for _, records in runs}
    most = max(slots)
    batch, limit = ("requests", None) if len(slots) > 1 else (f"of {most} slots", float(most))

    def strip(
        title: str, of: Callable[[Records], Band], limit: float | None = None, *, peaks_only: bool = False
    ) -> Strip:
        return Strip(title, {label: of(records) for label, records in runs}, limit, peaks_only)

    found = [
        strip("waiting\n(requests)", lambda r: band(queue_depth(r), end_s, buckets=fine)),
        strip(f"in the batch\n({batch})", lambda r: band(running(r), end_s, buckets=fine), limit),
        strip("KV in use\n(%)", lambda r: band(kv_used_blocks(r), end_s, 100.0 / max(r.all_blocks, 1), fine)),
        strip("step time\n(ms)", lambda r: step_band(step_time(r), end_s, 1e3, coarse), peaks_only=True),
    ]
    if any(r.lives is not None for _, r in runs):
        found.append(strip("replicas\n(there)", lambda r: band(_replicas(r), end_s, buckets=fine)))
    if any(len(r.requeues.row) for _, r in runs):
        found.append(strip("preemptions\n(so far)", lambda r: band(preemptions(r), end_s, buckets=fine)))
    return found


def _replicas(records: Records) -> StepFunction:
    """The number of replicas over time, also where it stays the same."""
    always = np.array([records.replicas], dtype=np.float64)
    return replicas_there(records) or StepFunction(np.zeros(1), always, run_end_s(records))


def timeline(runs: Sequence[tuple[str, Records]], style: Mapping[str, Style], name: str = "timeline") -> Picture:
    """All runs over one time axis, panels one below the other."""
    panels = strips(runs)
    end_s = shown_until(runs)
    clock = clock_for(max(run_end_s(records) for _, records in runs))
    more = ", ".join(
        f"{shorten(label)} goes on until {short(end / clock.seconds)} {clock.unit}"
        for label, records in runs
        if (end := run_end_s(records)) > end_s
    )
    return draw_strips(name, panels, [label for label, _ in runs], style, end_s, more)


def draw_strips(
    name: str, panels: Sequence[Strip], labels: Sequence[str], style: Mapping[str, Style], end_s: float, more: str = ""
) -> Picture:
    """Panels over one time axis, one below the other; `more` says what is cut off at its end."""
    return draw(
        name, (10.0, 0.9 + 1.3 * max(len(panels), 1)), lambda figure: _paint(figure, panels, labels, style, end_s, more)
    )


def _paint(
    figure: Figure, panels: Sequence[Strip], labels: Sequence[str], style: Mapping[str, Style], end_s: float, more: str
) -> str:
    clock = clock_for(end_s)
    axes = figure.subplots(max(len(panels), 1), 1, sharex=True, squeeze=False)[:, 0]
    order = {label: place for place, label in enumerate(labels)}
    for axis, panel in zip(axes, panels, strict=False):
        _paint_strip(axis, panel, style, clock, order)
    if not panels:
        axes[0].text(0.5, 0.5, "nothing ran", transform=axes[0].transAxes, ha="center", va="center", color=INK)
    run_time_axis(axes[-1], end_s, clock)
    if more:
        axes[0].set_title(f"{more} →", loc="right", fontsize=8.5, fontweight="normal", pad=3.0)
    figure.align_ylabels(axes)
    longest = max(len(shorten(label)) for label in labels)
    handles = [Line2D([], [], color=style[label].color, linestyle=style[label].dash) for label in labels]
    across = min(len(labels), max(1, 104 // (longest + 10)), 4)  # about 104 characters fit a line
    figure.legend(handles, list(map(shorten, labels)), loc="outside upper left", ncols=across, labelcolor=INK)
    split = any(apart(panel.bands) for panel in panels)
    return (
        "Lines are means over a few hundred equal stretches of the run, bands reach from the smallest to the largest "
        "value in each (step time: the thin line is the largest). Look how long a queue takes to come back after a "
        "burst: it does at once where slots change hands every step; one that never does means a saturated run. KV at "
        "100 % causes preemptions, and so does a full batch where priorities differ; peaks of the step time are what "
        "users see as stutter."
        + (" Where one run dwarfs the others, the axis is linear up to the dashed line and logarithmic above." * split)
        + (f" The end is cut off: {more}." if more else "")
        + said(_coinciding(panels))
    )


def _coinciding(panels: Sequence[Strip]) -> list[list[str]]:
    """Runs whose means lie on each other in every panel."""
    means: dict[str, list[Floats]] = {}
    for panel in panels:
        tops = [float(np.nanmax(each.high)) for each in panel.bands.values() if np.isfinite(each.high).any()]
        top = max(tops, default=0.0) or 1.0
        for label, each in panel.bands.items():
            means.setdefault(label, []).append(each.mean / top)
    return coinciding({label: np.concatenate(parts) for label, parts in means.items()}, 1.0)


def apart(bands: Mapping[str, Band]) -> float | None:
    """The value up to which an axis must be linear so that one run does not flatten the others; None if none does.

    It is a round one just above the others' largest.
    """
    tops = sorted(float(np.nanmax(each.high)) for each in bands.values() if np.isfinite(each.high).any())
    for low, high in pairwise(tops):
        if high > FLATTENED * max(low, 1.0):
            return _round_up(max(low, 1.0))
    return None


def _round_up(value: float) -> float:
    """The next of 1, 2, 5, 10, 20, ..."""
    power = 10.0 ** math.floor(math.log10(value))
    return next(power * digit for digit in (1.0, 2.0, 5.0, 10.0) if power * digit >= value)


def _split_axis(axis: Axes, linear_to: float, top: float) -> None:
    """Linear up to the largest value of the ordinary runs, logarithmic above."""
    axis.set_yscale("symlog", linthresh=linear_to, linscale=max(1.0, math.log10(top / linear_to)))
    axis.axhline(linear_to, color=MUTED, linewidth=0.8, linestyle=(0, (5.0, 3.0)), zorder=1.5)
    decades = [10.0**power for power in range(-2, 10) if 2.0 * linear_to < 10.0**power <= top * 1.2]
    ticks = [0.0, linear_to, *(decades or [top])]
    axis.set_yticks(ticks, [short(tick) for tick in ticks])
    axis.yaxis.set_minor_locator(NullLocator())
    axis.set_ylim(0.0, top * 1.3)


def _paint_strip(axis: Axes, panel: Strip, style: Mapping[str, Style], clock: Clock, order: Mapping[str, int]) -> None:
    bands = {label: each for label, each in panel.bands.items() if len(each.time_s) and np.isfinite(each.high).any()}
    for label, each in bands.items():
        look, gid = style[label], f"run-{order[label]}-" + re.sub(r"\W", "_", panel.title)
        time = each.time_s / clock.seconds
        if panel.peaks_only:
            axis.plot(time, each.high, color=look.color, linewidth=0.8, alpha=0.8, gid=gid + "-peak")
        else:
            shade = axis.fill_between(time, each.low, each.high, color=look.color, alpha=0.16, linewidth=0.0)
            shade.set_gid(gid + "-band")
        solid = look.dash == "-"  # below the others and wider, so that it hides none
        width, zorder = (1.9, 3) if solid else (1.4, 4)
        axis.plot(time, each.mean, color=look.color, linestyle=look.dash, linewidth=width, zorder=zorder, gid=gid)
    axis.set_ylabel(panel.title)
    top = max((float(np.nanmax(each.high)) for each in bands.values()), default=0.0)
    low = min((float(np.nanmin(each.low)) for each in bands.values()), default=0.0)
    if panel.peaks_only and low > 0.0 and top / low > LOG_FROM:
        log_numbers(axis.yaxis, top / low)
        axis.set_ylim(low / 1.3, top * 1.3)
        return
    if (linear_to := apart(bands)) is not None:
        _split_axis(axis, linear_to, top)
        return
    if panel.limit is not None and panel.limit <= 4.0 * top:
        axis.axhline(panel.limit, color=INK, linewidth=0.9, linestyle=(0, (2.0, 2.0)), zorder=6)
        top = max(top, panel.limit)
    axis.set_ylim(0.0, top * 1.08 if top > 0.0 else 1.0)
    plain_numbers(axis.yaxis, bins=4)


# KV memory by request: the areas of the largest requests, of all others, and of what is taken and not filled.

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
    """Queue, batch, memory and step times of every run, and its KV memory by request."""
    yield Plot(20, "kv_by_request", "What the slots did", lambda: occupancy(drawn.labelled, drawn.style))
    yield Plot(40, "timeline", "Over time", lambda: timeline(drawn.labelled, drawn.style))
