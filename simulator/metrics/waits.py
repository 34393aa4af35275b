"""Waiting: queue depth, starvation, whether the queue keeps growing, and transient overload.

A request waits from its arrival until it is first scheduled, and after each preemption until it is scheduled again.
A request that is never scheduled waits until it is aborted or the run ends; a rejected one does not wait.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from simulator.columns import pieces_of, stretches
from simulator.metrics.latency import queue_s
from simulator.metrics.window import Bools, Window, measured_window, run_end_s
from simulator.results.records import Floats, Ints, Records, Status
from simulator.statistics import pairwise_sum

MIN_ARRIVALS = 100  # `saturated`: fewer say nothing about a steady state
MIN_TURNOVERS = 3  # `saturated`: arrivals must last this many times a request's own time of service


@dataclass(frozen=True, slots=True)
class Waits:
    """All stretches of waiting: their beginnings and their ends, each sorted, of equal length.

    A stretch includes its beginning and not its end: at one time, requests leave the queue before others enter it, and
    a request that is scheduled at its arrival never stood in it.
    """

    from_s: Floats
    to_s: Floats

    def depth(self, time_s: Floats) -> Ints:
        """Waiting requests at each of these times."""
        begun = np.searchsorted(self.from_s, time_s, side="right")
        ended = np.searchsorted(self.to_s, time_s, side="right")
        return np.asarray(begun - ended, dtype=np.int64)

    def waited_s(self, start_s: float, end_s: float) -> float:
        """Seconds of waiting between two times, over all requests: the integral of the queue depth."""

        # The i-th beginning and the i-th end need not be the same request's, but the sum is the same.
        def waited(some: slice) -> Floats:
            return np.clip(self.to_s[some], start_s, end_s) - np.clip(self.from_s[some], start_s, end_s)

        return pairwise_sum(len(self.from_s), waited)

    def mean_depth(self, start_s: float, end_s: float) -> float:
        """Time-weighted mean queue depth between two times; NaN where they are one."""
        return self.waited_s(start_s, end_s) / (end_s - start_s) if end_s > start_s else math.nan

    def max_depth(self, start_s: float, end_s: float) -> int:
        """The deepest the queue was at any time from `start_s` until before `end_s`."""
        return max(int(depth.max()) for depth in self._depths(self.from_s, start_s, end_s))

    def min_depth(self, start_s: float, end_s: float) -> int:
        """The shortest the queue was at any time from `start_s` until before `end_s`."""
        return min(int(depth.min()) for depth in self._depths(self.to_s, start_s, end_s))

    def _depths(self, times: Floats, start_s: float, end_s: float) -> Iterator[Ints]:
        """The depths at the first of two times, and at those of `times` between them."""
        yield self.depth(np.array([start_s]))
        a, b = np.searchsorted(times, (start_s, end_s), side="left")
        for some in stretches(int(b - a)):
            yield self.depth(times[a:b][some])


def waits(records: Records, only: Bools | None = None) -> Waits:
    """The stretches of waiting of all requests, or of those that `only` (one entry a request) names."""
    queue_from, queue_to = first_waits(records)
    again_from, again_to = _requeue_waits(records)
    if only is not None:
        queue_from, queue_to = queue_from[only], queue_to[only]
        again = only[records.requeues.row]
        again_from, again_to = again_from[again], again_to[again]
    waited = queue_to > queue_from  # leaves out NaN: rejected
    again = again_to > again_from
    found = Waits(
        np.concatenate((queue_from[waited], again_from[again])), np.concatenate((queue_to[waited], again_to[again]))
    )
    found.from_s.sort()
    found.to_s.sort()
    return found


def first_waits(records: Records) -> tuple[Floats, Floats]:
    """When each request came, and when it was first scheduled or left unscheduled (s); NaN where it was rejected."""
    requests = records.requests
    unscheduled = np.flatnonzero(np.isnan(requests.scheduled_s) & (requests.status != Status.REJECTED))
    return requests.arrival_s, _with(requests.scheduled_s, unscheduled, _left_s(records, unscheduled))


def _requeue_waits(records: Records) -> tuple[Floats, Floats]:
    requeues = records.requeues
    lost = np.flatnonzero(np.isnan(requeues.to_s))
    return requeues.from_s, _with(requeues.to_s, lost, _left_s(records, requeues.row[lost]))


def _left_s(records: Records, rows: Ints) -> Floats:
    """When each of these requests, which are not served any more, left the queue: aborted, or at the end of the run."""
    if not len(rows):
        return np.empty(0)
    requests = records.requests
    return np.where(requests.status[rows] == Status.ABORTED, requests.released_s[rows], run_end_s(records))


def _with(column: Floats, places: Ints, values: Floats) -> Floats:
    """The column with other values at some places."""
    if not len(places):
        return column
    changed = column.copy()
    changed[places] = values
    return changed


@dataclass(frozen=True, slots=True)
class Starvation:
    """The longest waits and the most preemptions of one request; 0 where there were none.

    `longest_queue_s` is the wait until first scheduled, `longest_requeue_s` a single wait after a preemption. Requests
    that still wait at the end of the run count with their wait until then.
    """

    longest_queue_s: float
    longest_requeue_s: float
    most_preemptions: int


def starvation(records: Records, only: Bools | None = None) -> Starvation:
    """The worst cases among all requests, or among those that `only` names."""
    requests = records.requests
    counts = np.ones(len(requests.row), dtype=np.bool_) if only is None else only
    queue_from, queue_to = first_waits(records)
    waited_s = np.where(counts, queue_to - queue_from, 0.0)
    again_from, again_to = _requeue_waits(records)
    again_s = np.where(counts[records.requeues.row], again_to - again_from, 0.0)
    times = np.where(counts, requests.preemptions, 0)
    return Starvation(_longest(waited_s), _longest(again_s), int(times.max(initial=0)))


def _longest(seconds: Floats) -> float:
    return float(np.nan_to_num(seconds).max(initial=0.0))


def saturated(records: Records, window: Window, waiting: Waits) -> bool:
    """True if the queue keeps growing over the measured window: such a run has no steady state to take means of.

    Only the time in which the measured requests arrive counts, as every queue drains afterwards. It is cut in thirds
    with mean queue depths q1, q2, q3, over n arrivals. The run is saturated if all of these hold:

    - q2 - q1 and q3 - q2 are both above 1.5 * sqrt(n / 3), times the coefficient of variation of the gaps between
      arrivals where that is above 1. The queue of a server that just keeps up wanders by about sqrt(n / 3) in a third
      of the time; an overloaded server leaves a share of all arrivals in the queue, which grows with n.
    - The least depth of the last third is above q1. A burst, however large, that has been worked off by then is no
      saturation.
    - There are at least 100 arrivals, over at least three times the mean time of service of a request. A burst that
      is over before the batch has changed says nothing about a steady state.
    """
    requests = records.requests
    taken = window.measured & (requests.status != Status.REJECTED)
    arrival = np.sort(requests.arrival_s[taken])
    n = len(arrival)
    if n < MIN_ARRIVALS:
        return False
    first, last = float(arrival[0]), float(arrival[-1])
    if last - first <= MIN_TURNOVERS * service_s(records, taken):
        return False
    cuts = [first + (last - first) * i / 3 for i in range(3)] + [last]
    q1, q2, q3 = (waiting.mean_depth(a, b) for a, b in pairwise(cuts))
    gaps = np.diff(arrival)
    variation = max(1.0, float(gaps.std() / gaps.mean()))
    by_chance = 1.5 * math.sqrt(n / 3) * variation
    grows = q2 - q1 > by_chance and q3 - q2 > by_chance
    return grows and waiting.min_depth(cuts[2], last) > q1


def service_s(records: Records, taken: Bools) -> float:
    """Mean time from first scheduled to last token or abort without the waits between; 0 if none was scheduled."""
    requests = records.requests
    served = taken & ~np.isnan(requests.scheduled_s)
    if not served.any():
        return 0.0
    seconds = requests.last_token_s[served]
    for status in (Status.UNFINISHED, Status.ABORTED, Status.REJECTED):
        others = np.flatnonzero((requests.status == status)[served])
        if len(others):
            seconds[others] = requests.released_s[served][others] if status == Status.ABORTED else run_end_s(records)
    seconds -= requests.scheduled_s[served]
    seconds -= requests.requeued_s[served]
    return float(np.mean(seconds))


# Transient overload: a stretch in which more requests came than the service could begin, and the queue it left.
#
# `saturated` asks whether a run has a steady state at all. A run that has one may still have been overloaded for a
# while: the percentiles of its latencies then are those of that while.

LOW_WATER = 0.05  # share of the deepest queue below which a backlog counts as worked off
BY_CHANCE = 3.0  # standard deviations that the growth of a queue must exceed
MIN_BACKLOG_TURNOVERS = 1.0  # a backlog must last this many times a request's own time of service
MIN_SHARE = 0.01  # of the measured requests: so many must have waited too long


@dataclass(frozen=True, slots=True)
class Overload:
    """The worst backlog of a run, from when the queue began to grow until it was worked off. Rates per second.

    While it grew, requests came at `arrival_rate` and were begun at `service_rate`; the deepest queue, `peak`
    requests, was at `peak_s`. `late` requests that came in it waited longer than `limit_s` to be begun, the longest
    `longest_s`. `times` counts such backlogs of the run, `all_late` the late requests of all of them.
    """

    from_s: float
    peak_s: float
    to_s: float
    peak: int
    arrival_rate: float
    service_rate: float
    late: int
    longest_s: float
    limit_s: float
    times: int
    all_late: int
    requests: int  # of the run, measured

    @property
    def duration_s(self) -> float:
        return self.to_s - self.from_s


def overload(
    records: Records, *, limit_s: float | None = None, warmup_s: float = 0.0, cooldown_s: float = 0.0
) -> Overload | None:
    """The worst transient overload among the measured requests; None where there was none.

    `limit_s` is how long a request may wait to be begun, by default as long as requests are served on average. A
    backlog is a stretch in which the queue never falls to a twentieth of its deepest. It is an overload if

    - the queue grew by more than three times sqrt(n), with n the requests that came meanwhile (times the coefficient
      of variation of their gaps where that is above 1): a server that just keeps up sees its queue wander by sqrt(n);
    - it lasted longer than a request's own time of service: what a batch leaves waiting for the next is no overload;
    - requests waited longer than `limit_s` in it, and in all such backlogs at least one in a hundred of all requests.

    The worst is that with the most such requests; of equals the first.
    """
    window = measured_window(records, warmup_s, cooldown_s)
    requests = records.requests
    taken = window.measured & (requests.status != Status.REJECTED)
    if not taken.any():
        return None
    served_s = service_s(records, taken)
    limit = served_s if limit_s is None else limit_s
    times = np.sort(requests.arrival_s[taken])
    waiting = waits(records)
    found = [
        each
        for begin, end in _backlogs(waiting)
        if (each := _overload(records, waiting, taken, times, begin, end, limit, served_s)) is not None
    ]
    late = sum(each.late for each in found)
    if late < MIN_SHARE * len(times) or not late:
        return None
    worst = max(found, key=lambda each: each.late)
    return replace(worst, times=len(found), all_late=late)


def _backlogs(waiting: Waits) -> list[tuple[float, float]]:
    """The stretches in which the queue is deeper than the low water mark."""
    times = np.concatenate((waiting.from_s, waiting.to_s))
    if not len(times):
        return []
    times.sort()
    depth = np.concatenate([waiting.depth(piece).astype(np.int32) for piece in pieces_of(lambda: times)])
    high = np.concatenate(([False], depth > max(1.0, LOW_WATER * depth.max()), [False]))
    edges = np.flatnonzero(high[1:] != high[:-1])
    ends = np.append(times, times[-1])
    return [(float(times[a]), float(ends[b])) for a, b in zip(edges[::2], edges[1::2], strict=True)]


def _overload(
    records: Records,
    waiting: Waits,
    taken: Bools,
    arrivals: Floats,
    begin: float,
    end: float,
    limit_s: float,
    served_s: float,
) -> Overload | None:
    if end - begin <= MIN_BACKLOG_TURNOVERS * served_s:
        return None
    times = np.unique(waiting.from_s[(waiting.from_s >= begin) & (waiting.from_s < end)])
    depth = waiting.depth(times)
    at = int(depth.argmax())
    peak, peak_s = int(depth[at]), float(times[at])
    came = arrivals[(arrivals >= begin) & (arrivals <= peak_s)]
    grown_s = peak_s - begin
    if len(came) < 2 or grown_s <= 0.0:
        return None
    gaps = np.diff(came)
    variation = max(1.0, float(gaps.std() / gaps.mean())) if gaps.mean() > 0 else 1.0
    if peak <= BY_CHANCE * math.sqrt(len(came)) * variation:
        return None
    requests = records.requests
    gave_up = np.where(requests.status == Status.ABORTED, requests.released_s - requests.arrival_s, math.inf)
    waited = np.where(np.isnan(requests.scheduled_s), gave_up, queue_s(records))
    inside = taken & (requests.arrival_s >= begin) & (requests.arrival_s <= end)
    late = int((inside & (waited > limit_s)).sum())
    known = waited[inside & np.isfinite(waited)]
    begun = int(((requests.scheduled_s > begin) & (requests.scheduled_s <= peak_s)).sum())
    longest = float(known.max()) if len(known) else end - begin
    return Overload(
        begin, peak_s, end, peak, len(came) / grown_s, begun / grown_s, late, longest, limit_s, 1, late, len(arrivals)
    )
