"""The slot Gantt: the phases of every slot over time. The picture that explains static against continuous batching."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.legend_handler import HandlerTuple
from matplotlib.patches import Patch, PathPatch
from matplotlib.path import Path

from reports.picture import (
    CARD,
    GRID,
    HELD,
    INK,
    MUTED,
    DrawnRuns,
    Picture,
    Plot,
    Style,
    draw,
    equal,
    mix,
    said,
    shorten,
)
from reports.slots import Phase, Stays, assign, stalls, stays, window
from reports.units import Clock, clock_for, decimals, number
from simulator.metrics.window import run_end_s
from simulator.results.records import Floats, Ints, Records

MAX_SLOTS = 32
MAX_STRIPES = 6000  # of decodes that wait: more cannot be seen apart


@dataclass(frozen=True, slots=True)
class Panel:
    """One run's slots in the window. `slot` numbers the rows shown; shares are of all slot time in the window."""

    label: str
    stay: Stays
    slot: Ints
    stall_s: tuple[Floats, Floats]
    shares: dict[Phase, float]
    stalled: float  # the part of the decodes' share in which they stood still
    max_num_seqs: int
    in_use: int  # slots that anything was in, of those at once


def gantt(runs: Sequence[tuple[str, Records]], style: Mapping[str, Style]) -> Picture:
    """The first replica's slots of every run, one panel each, in the same stretch of time.

    Where more than 32 slots are in use, every k-th is drawn, so that the picture stays a fair sample.
    """
    everything = [stays(records) for _, records in runs]
    from_s, to_s = window(everything)
    shown = [stay.within(from_s, to_s) for stay in everything]
    slots = [assign(stay) for stay in shown]
    in_use = max((int(slot.max()) + 1 for slot in slots if len(slot)), default=1)
    every = -(-in_use // MAX_SLOTS)
    panels = []
    for (label, records), stay, slot in zip(runs, shown, slots, strict=True):
        sample, stalled = slot % every == 0, stalls(records, from_s, to_s)
        panels.append(
            Panel(
                label,
                stay.pick(sample),
                slot[sample] // every,
                stalled,
                _shares(stay, from_s, to_s, records.max_num_seqs),
                _stalled_share(stay, stalled, from_s, to_s, records.max_num_seqs),
                records.max_num_seqs,
                int(slot.max(initial=-1)) + 1,
            )
        )
    end_s = max((run_end_s(records) for _, records in runs), default=0.0)
    did = {panel.label: b"".join(getattr(panel.stay, name).tobytes() for name in Stays.__slots__) for panel in panels}
    told = _window_words(from_s, to_s, end_s) + said(equal(did))
    rows = -(-in_use // every)
    each = min(max(0.6 + 0.045 * rows, 1.15), 2.0)
    return draw(
        "gantt",
        (10.0, 0.95 + each * len(panels)),
        lambda figure: _paint(figure, panels, style, clock_for(to_s, from_s), (from_s, to_s), rows, every) + told,
    )


def _window_words(from_s: float, to_s: float, end_s: float) -> str:
    """Say what stretch is shown, and why."""
    clock = clock_for(to_s, from_s)
    places = decimals([to_s / clock.seconds - from_s / clock.seconds], 3)
    ends = [number(at / clock.seconds, places) for at in (from_s, to_s, end_s)]
    return (
        f" Shown are {ends[0]} to {ends[1]} of {ends[2]} {clock.unit}, about two typical stays in a slot: a busy time, "
        "chosen because the runs differ most there."
    )


def _shares(stay: Stays, from_s: float, to_s: float, max_num_seqs: int) -> dict[Phase, float]:
    shares = {}
    for phase in Phase:
        start, end = (np.clip(each, from_s, to_s) for each in stay.bounds(phase))
        shares[phase] = float((end - start).sum()) / ((to_s - from_s) * max_num_seqs)
    return shares


def _stalled_share(stay: Stays, stalled: tuple[Floats, Floats], from_s: float, to_s: float, max_num_seqs: int) -> float:
    """The share of the slots' time in which decodes stood still for prefill steps."""
    begin, end = (np.clip(each, from_s, to_s) for each in stalled)
    if not len(begin):
        return 0.0
    edges = np.stack([begin, end], axis=1).ravel()
    so_far = np.concatenate(([0.0], np.repeat(np.cumsum(end - begin), 2)[:-1]))  # stood still, up to each edge
    first, last = (np.interp(np.clip(each, from_s, to_s), edges, so_far) for each in stay.bounds(Phase.DECODE))
    return float((last - first).sum()) / ((to_s - from_s) * max_num_seqs)


def _paint(
    figure: Figure,
    panels: Sequence[Panel],
    style: Mapping[str, Style],
    clock: Clock,
    span_s: tuple[float, float],
    rows: int,
    every: int,
) -> str:
    axes = figure.subplots(len(panels), 1, sharex=True, sharey=True, squeeze=False)[:, 0]
    for place, (axis, panel) in enumerate(zip(axes, panels, strict=True)):
        _paint_panel(axis, panel, style[panel.label].color, clock, rows)
        axis.set_gid(f"run-{place}-slots")
    axes[0].set_xlim(span_s[0] / clock.seconds, span_s[1] / clock.seconds)
    axes[0].set_ylim(rows - 0.5 + 0.1, -0.6)
    axes[-1].set_xlabel(f"time since the run began ({clock.unit})")
    for axis in axes:
        axis.set_ylabel("slot" if every == 1 else f"slot (1 in {every} drawn)")
    colors = [style[panel.label].color for panel in panels]
    handles: list[Any] = [  # a tuple of patches stands for one entry in several colours
        Patch(facecolor=INK),
        tuple(Patch(facecolor=color) for color in colors),
        tuple(Patch(facecolor=mix(color, 0.62)) for color in colors),
        Patch(facecolor=HELD, edgecolor=MUTED, hatch="xxxx", linewidth=0.0),
        Patch(facecolor=HELD, edgecolor=MUTED, hatch="//////", linewidth=0.0),
        Patch(facecolor=CARD, edgecolor=GRID, linewidth=0.8),
    ]
    names = ["prefill", "decode", "decode, waiting for prefill steps", "padding", "held after finishing", "idle"]
    figure.legend(
        handles, names, loc="outside lower center", ncols=6, handler_map={tuple: HandlerTuple(ndivide=None, pad=0.0)}
    )
    text = (
        "What every slot of the batch did, same stretch of time for all. Look for grey: slots whose request has "
        "finished, kept because the longest of the batch is still running, and prompts padded to the longest. Look for "
        "pale stripes through all slots: answers that stand still while a step computes prompts alone. A new request "
        "can only start where a slot turns free, or where a less important one gives it up."
    )
    return text + (f" In the still picture, one slot of every {every} is drawn." if every > 1 else "")


def _paint_panel(axis: Axes, panel: Panel, color: str, clock: Clock, rows: int) -> None:
    axis.grid(False)
    start, end = panel.stall_s
    shades = (
        (Phase.DECODE, color, 1, None),
        (Phase.HELD, HELD, 3, "//////"),
        (Phase.PADDING, HELD, 3, "xxxx"),
        (Phase.PREFILL, INK, 4, None),
    )
    for phase, face, zorder, hatch in shades:
        if (path := _boxes(*panel.stay.bounds(phase), panel.slot, clock)) is not None:
            edge = MUTED if hatch else CARD  # the thin edge parts a request from the next in the same slot
            width = 0.5 if phase is Phase.DECODE else 0.0
            axis.add_patch(PathPatch(path, facecolor=face, edgecolor=edge, linewidth=width, zorder=zorder, hatch=hatch))
    if len(start) and (path := _stripes(panel, start, end, clock)) is not None:
        axis.add_patch(PathPatch(path, facecolor=mix(color, 0.62), edgecolor="none", zorder=2))
    shares = panel.shares
    idle = max(1.0 - sum(shares.values()), 0.0)
    axis.set_title(shorten(panel.label), color=INK)
    parts = (
        ("decode", shares[Phase.DECODE] - panel.stalled),
        ("waiting", panel.stalled),
        ("prefill", shares[Phase.PREFILL]),
        ("held or padding", shares[Phase.HELD] + shares[Phase.PADDING]),
        ("idle", idle),
    )
    told = [f"{100 * share:.0f} % {name}" for name, share in parts if share >= 0.005]
    text = f"{panel.in_use} of {panel.max_num_seqs} slots used; of all: {', '.join(told)}" if told else ""
    axis.set_title(text, loc="right", fontsize=8.5, fontweight="normal", color=INK)
    if not len(panel.stay):
        axis.text(0.5, 0.5, "nothing ran in this window", transform=axis.transAxes, ha="center", va="center")


def _boxes(start: Floats, end: Floats, slot: Ints, clock: Clock) -> Path | None:
    """One path of a rectangle for each interval that is not empty."""
    some = end > start
    if not some.any():
        return None
    left, right, middle = start[some] / clock.seconds, end[some] / clock.seconds, slot[some]
    low, high = middle - 0.42, middle + 0.42
    corners = np.stack([left, low, left, high, right, high, right, low, left, low], axis=1)  # x and y of each
    codes = np.tile([Path.MOVETO, Path.LINETO, Path.LINETO, Path.LINETO, Path.CLOSEPOLY], len(left))
    return Path(corners.reshape(-1, 2), codes.astype(np.uint8))


def _stripes(panel: Panel, start: Floats, end: Floats, clock: Clock) -> Path | None:
    """The parts of decodes that a stall covers; left out when they are too many to be seen apart."""
    decode_start, decode_end = panel.stay.bounds(Phase.DECODE)
    first = np.searchsorted(end, decode_start, side="right")
    last = np.searchsorted(start, decode_end, side="left")
    count = np.maximum(last - first, 0)
    if count.sum() > MAX_STRIPES:
        return None
    stay = np.repeat(np.arange(len(count)), count)
    which = np.arange(len(stay)) - np.repeat(np.cumsum(count) - count, count) + first[stay]
    left = np.maximum(start[which], decode_start[stay])
    right = np.minimum(end[which], decode_end[stay])
    return _boxes(left, right, panel.slot[stay], clock)


def plots(drawn: DrawnRuns) -> Iterator[Plot]:
    """The slots of every run over time."""
    yield Plot(10, "gantt", "What the slots did", lambda: gantt(drawn.labelled, drawn.style))
