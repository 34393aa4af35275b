"""Waiting: queue depth, starvation, and whether the queue keeps growing.

A request waits from its arrival until it is first scheduled, and after each preemption until it is scheduled again.
A request that is never scheduled waits until it is aborted or the run ends; a rejected one does not wait.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from simulator.columns import stretches
from simulator.metrics.window import Bools, Window, run_end_s
from simulator.results.records import Floats, Ints, Records, Status
from simulator.statistics.sums import pairwise_sum

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
