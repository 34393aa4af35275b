"""Waiting: queue depth, starvation, and whether the queue keeps growing.

A request waits from its arrival until it is first scheduled, and after each preemption until it is scheduled again.
A request that is never scheduled waits until it is aborted or the run ends; a rejected one does not wait.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from simulator.metrics.window import Bools, Window, run_end_s
from simulator.results.records import Floats, Ints, Records, Status

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
        return float(np.sum(np.clip(self.to_s, start_s, end_s) - np.clip(self.from_s, start_s, end_s)))

    def mean_depth(self, start_s: float, end_s: float) -> float:
        """Time-weighted mean queue depth between two times; NaN where they are one."""
        return self.waited_s(start_s, end_s) / (end_s - start_s) if end_s > start_s else math.nan

    def max_depth(self, start_s: float, end_s: float) -> int:
        """The deepest the queue was at any time from `start_s` until before `end_s`."""
        return int(self.depth(self._changes(self.from_s, start_s, end_s)).max())

    def min_depth(self, start_s: float, end_s: float) -> int:
        """The shortest the queue was at any time from `start_s` until before `end_s`."""
        return int(self.depth(self._changes(self.to_s, start_s, end_s)).min())

    @staticmethod
    def _changes(times: Floats, start_s: float, end_s: float) -> Floats:
        a, b = np.searchsorted(times, (start_s, end_s), side="left")
        return np.concatenate(([start_s], times[a:b]))


def waits(records: Records, only: Bools | None = None) -> Waits:
    """The stretches of waiting of all requests, or of those that `only` (one entry a request) names."""
    queue_from, queue_to = _first_waits(records)
    again_from, again_to = _requeue_waits(records)
    if only is not None:
        queue_from, queue_to = queue_from[only], queue_to[only]
        again = only[records.requeues.row]
        again_from, again_to = again_from[again], again_to[again]
    waited = queue_to > queue_from  # leaves out NaN: rejected
    again = again_to > again_from
    return Waits(
        np.sort(np.concatenate((queue_from[waited], again_from[again]))),
        np.sort(np.concatenate((queue_to[waited], again_to[again]))),
    )


def _first_waits(records: Records) -> tuple[Floats, Floats]:
    requests = records.requests
    unscheduled = np.isnan(requests.scheduled_s) & (requests.status != Status.REJECTED)
    return requests.arrival_s, np.where(unscheduled, _left_s(records), requests.scheduled_s)


def _requeue_waits(records: Records) -> tuple[Floats, Floats]:
    requeues = records.requeues
    return requeues.from_s, np.where(np.isnan(requeues.to_s), _left_s(records)[requeues.row], requeues.to_s)


def _left_s(records: Records) -> Floats:
    """When each request that is not served any more left the queue: aborted, or at the end of the run."""
    requests = records.requests
    return np.where(requests.status == Status.ABORTED, requests.released_s, run_end_s(records))


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
    queue_from, queue_to = _first_waits(records)
    waited_s = np.where(counts, queue_to - queue_from, 0.0)
    again_from, again_to = _requeue_waits(records)
    again_s = np.where(counts[records.requeues.row], again_to - again_from, 0.0)
    times = np.where(counts, requests.preemptions, 0)
    return Starvation(_longest(waited_s), _longest(again_s), int(times.max(initial=0)))


def _longest(seconds: Floats) -> float:
    return float(np.nan_to_num(seconds).max(initial=0.0))


def saturated(records: Records, window: Window, waiting: Waits) -> bool:
    """Whether the queue keeps growing over the measured window: such a run has no steady state to take means of.

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
    last, end = requests.last_token_s[served], run_end_s(records)
    until = np.where(requests.status[served] == Status.FINISHED, last, end)
    until = np.where(requests.status[served] == Status.ABORTED, requests.released_s[served], until)
    return float(np.mean(until - requests.scheduled_s[served] - requests.requeued_s[served]))
