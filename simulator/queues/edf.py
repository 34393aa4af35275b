"""Earliest deadline first."""

from __future__ import annotations

from math import inf

from simulator.queues.by_key import ByKey
from simulator.request import RequestView


def edf(deadline_s: float | None = None) -> ByKey:
    """The earliest deadline first, which is the arrival plus the request's own `deadline_s`, or else this one.

    Requests without either come last, in order of arrival.
    """
    if deadline_s is not None and not deadline_s >= 0:
        raise ValueError(f"deadline_s must be 0 or more, not {deadline_s}")

    def key(request: RequestView) -> tuple[float, int]:
        within_s = deadline_s if request.deadline_s is None else request.deadline_s
        return inf if within_s is None else request.arrival_s + within_s, request.row

    return ByKey(key)
