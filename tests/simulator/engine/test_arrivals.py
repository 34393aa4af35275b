"""Requests to come, read ahead or added."""

from math import inf

from simulator.engine.intake import Arrivals
from simulator.request import Request


def request(row: int, at_s: float) -> Request:
    return Request(row, str(row), at_s, 1, 1, 1)


def taken(arrivals: Arrivals) -> list[tuple[float, int]]:
    rows = []
    while arrivals.due_s < inf:
        due_s = arrivals.due_s
        rows.append((due_s, arrivals.take().row))
    return rows


def test_requests_that_are_read_ahead_come_before_those_that_were_added() -> None:
    arrivals = Arrivals(iter([request(0, 1.0), request(1, 2.0)]))
    arrivals.add(request(2, 2.0))
    arrivals.add(request(3, 4.0))
    assert taken(arrivals) == [(1.0, 0), (2.0, 1), (2.0, 2), (4.0, 3)]
    arrivals.add(request(4, 5.0))
    assert taken(arrivals) == [(5.0, 4)]


def test_without_requests_nothing_is_due() -> None:
    assert Arrivals().due_s == inf
