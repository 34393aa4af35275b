"""How long replicas were there, where their number changes: what their GPUs cost, and how often it changed."""

from dataclasses import dataclass

import numpy as np

from simulator.metrics.window import Bools, Window
from simulator.results.records import Floats, Records


def present_s(records: Records, window: Window) -> Floats:
    """Each replica's seconds of the window in which it was started, starting or draining."""
    lives = records.lives
    if lives is None:
        return np.full(records.replicas, window.duration_s)
    start, end = (np.clip(times, window.start_s, window.end_s) for times in (lives.start_s, _or_end(lives.end_s)))
    return np.bincount(lives.replica, end - start, records.replicas).astype(np.float64)


def _or_end(times_s: Floats) -> Floats:
    return np.where(np.isnan(times_s), np.inf, times_s)


@dataclass(frozen=True, slots=True)
class Changes:
    """How the number of replicas changed in a window. Times are means; NaN where there were none."""

    peak: int  # the most at a time, starting and draining ones included
    scale_outs: int  # replicas started
    scale_ins: int  # replicas told to drain
    time_to_scale_s: float  # from the decision to a replica that takes requests
    drain_s: float  # from the decision to an empty replica


def changes(records: Records, window: Window) -> Changes | None:
    """None where the number of replicas does not change."""
    lives = records.lives
    if lives is None:
        return None

    def inside(times: Floats) -> Bools:
        return (times >= window.start_s) & (times <= window.end_s) & (times > 0)

    began, drained = inside(lives.start_s), inside(lives.drain_s)
    times = np.concatenate([lives.start_s, _or_end(lives.end_s)])
    steps = np.repeat([1, -1], len(lives.start_s))
    order = np.lexsort((steps, times))  # at one time who goes goes first
    counts, at_s = np.cumsum(steps[order]), times[order]
    during = (at_s <= window.end_s) & (np.append(at_s[1:], np.inf) > window.start_s)
    return Changes(
        peak=int(counts[during].max(initial=0)),
        scale_outs=int(began.sum()),
        scale_ins=int(drained.sum()),
        time_to_scale_s=_mean((lives.ready_s - lives.start_s)[began]),
        drain_s=_mean((lives.end_s - lives.drain_s)[drained]),
    )


def _mean(values: Floats) -> float:
    known = values[~np.isnan(values)]
    return float(known.mean()) if len(known) else float("nan")
