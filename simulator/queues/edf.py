"""Earliest deadline first."""

from math import inf
from typing import Annotated

from annotated_types import doc

from simulator.parameters import Seconds
from simulator.queues.order import OrderKind
from simulator.queues.sorted_queues import ByKey
from simulator.request import RequestView

Deadline = Annotated[Seconds | None, doc("deadline of a request without its own; default: the SLO's")]


def edf(deadline_s: Deadline = None) -> ByKey:
    """The earliest deadline first, which is the arrival plus the request's own `deadline_s`, or else this one.

    Requests without either come last, in order of arrival.
    """

    def key(request: RequestView) -> tuple[float, int]:
        within_s = deadline_s if request.deadline_s is None else request.deadline_s
        return inf if within_s is None else request.arrival_s + within_s, request.row

    return ByKey(key)


ORDER = OrderKind(edf)
