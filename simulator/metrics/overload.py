"""Transient overload: a stretch in which more requests came than the service could begin, and the queue it left.

`saturated` asks whether a run has a steady state at all. A run that has one may still have been overloaded for a
while: the percentiles of its latencies then are those of that while.
"""

import math
from dataclasses import dataclass, replace

import numpy as np

from simulator.columns import pieces_of
from simulator.metrics.latency import queue_s
from simulator.metrics.waits import Waits, service_s, waits
from simulator.metrics.window import Bools, measured_window
from simulator.results.records import Floats, Records, Status

LOW_WATER = 0.05  # share of the deepest queue below which a backlog counts as worked off
BY_CHANCE = 3.0  # standard deviations that the growth of a queue must exceed
MIN_TURNOVERS = 1.0  # a backlog must last this many times a request's own time of service
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
    if end - begin <= MIN_TURNOVERS * served_s:
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
