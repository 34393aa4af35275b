"""The requests that came too late, and by how much: what findings have to explain."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from simulator.metrics.latency import LATENCIES, Slo, limited_requests
from simulator.metrics.outcomes import MET, Outcome, outcomes_of
from simulator.metrics.waits import service_s
from simulator.metrics.window import Bools, Window, run_end_s
from simulator.results.records import Cause, Floats, Ints, Records, Status

TOLERATED = 0.01
"""Share of late requests that is no failure where an SLO names no other: its limits are asked of 99 % of them."""

_AFTER_FIRST = ("tpot", "itl")  # latencies that time before the first token is no part of
_BEFORE_FIRST = ("ttft", "queue_time")  # and those that time after it is no part of


@dataclass(frozen=True, slots=True)
class Late:
    """The late requests of a run, one entry each, against the limit that each misses by the largest factor.

    `excess_s` are seconds beyond that limit. `waits` and `paces` say whether time before, and after, the first token
    counts against it. A request was in the queue from `from_s` to `begun_s` and had its first token at `first_s`, its
    last at `last_s`; of one that never came so far, these are when it was lost.
    """

    row: Ints
    excess_s: Floats
    waits: Bools
    paces: Bools
    from_s: Floats
    begun_s: Floats
    first_s: Floats
    last_s: Floats
    counted: int  # requests that could have been late
    served_s: float  # how long requests are served on average
    broken: bool  # the SLO is missed: so many late ones are a failure
    by_slo: bool  # False: there is no SLO, and late is who waited longer than requests are served on average
    wait_limit_s: float  # the strictest limit of time to the first token, or in the queue; inf without one
    pace_limit_s: float  # the strictest limit of a gap between tokens; inf without one

    @property
    def share(self) -> float:
        """The share of the counted requests that are late."""
        return len(self.row) / self.counted if self.counted else 0.0

    @property
    def queued_s(self) -> Floats:
        """The seconds of each request in the queue."""
        return self.begun_s - self.from_s


def late_requests(
    records: Records, slo: Slo | None, summary: Mapping[str, Any], window: Window, served_s: float | None = None
) -> Late:
    """Find the late among the measured requests. Requests that can never fit are not counted.

    Without a limit or target, a request is late if it waited, in the queue and after preemptions, longer than requests
    are served on average: the yardstick of `simulator.metrics.waits`. `served_s` is that average in another run.
    """
    requests = records.requests
    never = [row for row, reason in records.reject_reasons.items() if not reason.startswith(Cause.QUEUE_FULL.value)]
    counted = window.measured.copy()
    counted[never] = False
    limits = None if slo is None else _as_limits(slo, outcomes_of(summary))
    served_s = service_s(records, counted) if served_s is None else served_s
    if limits is not None and limits.limits:
        excess, waits, paces = _excess(records, limits)
    else:
        limits = None
        begun = _known_or(requests.scheduled_s, lambda rows: _until_s(records, rows))
        excess = begun - requests.arrival_s + requests.requeued_s - served_s
        waits = paces = np.ones(len(excess), dtype=np.bool_)
    lost = counted & (requests.status != Status.FINISHED)
    if lost.any():
        gone = np.flatnonzero(lost)
        excess[gone] = np.maximum(_until_s(records, gone) - _from_s(records, gone, served_s), 1e-9)
        waits, paces = waits | lost, np.where(lost, ~np.isnan(requests.first_token_s), paces)
    row = np.flatnonzero(counted & (excess > 0))
    until_s, delay_s = _until_s(records, row), records.front_end_of(row)
    scheduled, first, last = (
        np.where(np.isnan(times), until_s, times)
        for times in (
            requests.scheduled_s[row],
            requests.first_token_s[row] - delay_s,
            requests.last_token_s[row] - delay_s,
        )
    )
    from_s = _from_s(records, row, served_s)
    return Late(
        row, excess[row], waits[row], paces[row], from_s, scheduled, first, last,
        counted=int(counted.sum()),
        served_s=served_s,
        broken=_broken(records, limits, summary, counted, row),
        by_slo=limits is not None,
        wait_limit_s=served_s if limits is None else _strictest(limits, _BEFORE_FIRST),
        pace_limit_s=np.inf if limits is None else _strictest(limits, _AFTER_FIRST),
    )  # fmt: skip


def _until_s(records: Records, rows: Ints) -> Floats:
    """Return the time at which each of these requests was lost: as it was released, or at the end of the run."""
    return _known_or(records.requests.released_s[rows], lambda _: run_end_s(records))


def _from_s(records: Records, rows: Ints, served_s: float) -> Floats:
    """Return the time from which each of these requests waited; a refused one as long ago as requests are served."""
    arrival_s = records.requests.arrival_s[rows]
    return np.where(records.requests.status[rows] == Status.REJECTED, arrival_s - served_s, arrival_s)


def _known_or(times_s: Floats, other_s: Callable[[Ints], Floats | float]) -> Floats:
    """Return the times; where one is NaN, the time that `other_s` gives for the entry."""
    unknown = np.flatnonzero(np.isnan(times_s))
    if not len(unknown):
        return times_s
    filled = times_s.copy()
    filled[unknown] = other_s(unknown)
    return filled


def _as_limits(slo: Slo, found: Sequence[Outcome]) -> Slo:
    """Turn targets on distributions into limits of each request, for all of them and for classes.

    The requests beyond a percentile that is missed are those that miss it. Among several targets of a latency, the
    strictest one that is missed counts.
    """

    def filled(own: Slo, class_name: str | None) -> dict[str, float]:
        limits = own.per_request()
        for name in LATENCIES:
            targets = [limit for key, limit in own.targets.items() if key.endswith(f"_{name}_ms")]
            missed = [
                each.limit for each in found
                if not each.met and each.class_name == class_name and each.metric.endswith(f"_{name}_ms")
            ]  # fmt: skip
            if name not in limits and targets:
                limits[name] = min(missed) if missed else max(targets)
        return limits

    default = filled(slo, None)
    classes = {}
    for name, own in slo.classes.items():
        limits = filled(own, name)
        classes[name] = _of_limits(limits if own.limits or not limits else {**default, **limits})
    return replace(_of_limits(default), classes=classes)


def _of_limits(limits: Mapping[str, float]) -> Slo:
    found = limits.get
    return Slo(found("ttft"), found("tpot"), found("e2el"), found("itl"), found("queue_time"))


def _excess(records: Records, slo: Slo) -> tuple[Floats, Bools, Bools]:
    """Return the seconds beyond the limit that each request misses by the largest factor; negative if all are met."""
    n = len(records.requests.row)
    excess, worst = np.full(n, -np.inf), np.full(n, -np.inf)
    waits, paces = np.zeros(n, dtype=np.bool_), np.zeros(n, dtype=np.bool_)
    groups = limited_requests(records, slo)
    for name in LATENCIES:
        if not any(name in limits for _, _, limits in groups):
            continue
        seconds = LATENCIES[name].of_request_s(records)
        for _, members, limits in groups:
            if name not in limits:
                continue
            factor = seconds / (limits[name] / 1e3)
            which = members & (factor > worst)
            worst[which], excess[which] = factor[which], (seconds - limits[name] / 1e3)[which]
            waits[which], paces[which] = name not in _AFTER_FIRST, name not in _BEFORE_FIRST
            if name == "tpot":  # a mean over the gaps: the seconds beyond it are those of all gaps together
                excess[which] *= np.maximum(records.requests.output_tokens[which] - 1, 1)
    return excess, waits, paces


def _strictest(slo: Slo, names: Sequence[str]) -> float:
    found = [slo, *slo.classes.values()]
    return min((each.per_request().get(name, np.inf) / 1e3 for each in found for name in names), default=np.inf)


def _broken(records: Records, limits: Slo | None, summary: Mapping[str, Any], counted: Bools, row: Ints) -> bool:
    """Return whether the SLO's targets are missed; without targets, whether more are late than is tolerated."""
    if MET in summary:
        return not summary[MET] and len(row) > 0
    late = np.zeros(len(counted), dtype=np.bool_)
    late[row] = True
    groups = [counted] if limits is None else [counted, *(each.requests for each in limited_requests(records, limits))]
    return any((late & counted & each).sum() > TOLERATED * (counted & each).sum() for each in groups)
