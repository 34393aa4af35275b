"""The measured window: which requests count, over which stretch of the run, and how long replicas were there."""

import math
from dataclasses import dataclass
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from simulator.columns import pieces_of
from simulator.errors import InputError
from simulator.results.records import Floats, Records, Status

Bools = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Window:
    """The measured requests, and the time from their first arrival to their last token or the last abort.

    With a measured request that never finished, the window lasts until the end of the run. `whole` says that nothing
    was cut.
    """

    start_s: float
    end_s: float
    measured: Bools  # one entry a request
    whole: bool

    @property
    def duration_s(self) -> float:
        """Seconds that throughputs and means over time are divided by."""
        return self.end_s - self.start_s


def measured_window(records: Records, warmup_s: float = 0.0, cooldown_s: float = 0.0) -> Window:
    """The window without the requests that arrive in the first `warmup_s` or last `cooldown_s` seconds of the arrivals.

    Raises InputError for a cut that is negative or not finite, or that leaves no request of a run that has some.
    """
    for name, value in (("warmup_s", warmup_s), ("cooldown_s", cooldown_s)):
        if not (math.isfinite(value) and value >= 0):
            raise InputError(f"{name} must be a number of seconds, 0 or more, not {value!r}")
    arrival = records.requests.arrival_s
    if not len(arrival):
        return Window(0.0, 0.0, np.zeros(0, dtype=np.bool_), True)
    first, last = float(arrival.min()), float(arrival.max())
    if warmup_s == 0 and cooldown_s == 0:
        measured = np.ones(len(arrival), dtype=np.bool_)
        return Window(first, _end_s(records, measured, first), measured, True)
    measured = (arrival >= first + warmup_s) & (arrival <= last - cooldown_s)
    if not measured.any():
        raise InputError(
            f"warmup_s = {warmup_s:g} and cooldown_s = {cooldown_s:g} leave no request to measure",
            hint=f"the arrivals last {last - first:g} s, so the two must add up to less",
        )
    start = float(arrival[measured].min())
    return Window(start, _end_s(records, measured, start), measured, False)


def run_end_s(records: Records) -> float:
    """The end of the run: that of its last step, or its last arrival where that came later; 0.0 for an empty run."""
    steps, arrivals = pieces_of(lambda: records.step_end_s), pieces_of(lambda: records.requests.arrival_s)
    return max((float(times.max()) for times in chain(steps, arrivals)), default=0.0)


def _end_s(records: Records, measured: Bools, start_s: float) -> float:
    requests = records.requests
    if np.any(measured & (requests.status == Status.UNFINISHED)):
        return run_end_s(records)
    last = requests.last_token_s[measured & (requests.status == Status.FINISHED)]
    aborts = requests.released_s[measured & (requests.status == Status.ABORTED)]
    return max((float(times.max()) for times in (last, aborts) if len(times)), default=start_s)


# How long replicas were there, where their number changes: what their GPUs cost, and how often it changed.


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
