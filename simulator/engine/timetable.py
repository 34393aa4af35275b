"""Arrivals and aborts to come, in the order of what happens at one moment: see `Timetable`."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from heapq import heappop, heappush
from math import inf
from typing import Protocol

from simulator.request import Request
from simulator.results.records import Cause, Status

_ARRIVAL, _ABORT = 0, 1


class Inlet(Protocol):
    """Where clients that react to what happens put their requests and aborts: now or later, never in the past."""

    def submit_at(self, request: Request) -> None:
        """Let `request` arrive at its `arrival_s`."""

    def abort_at(self, row: int, at_s: float) -> None:
        """Let the client of a request give up at `at_s`; without effect if the request has ended by then."""


class Door:
    """An inlet that leads to another, once that is there; what is put in before waits until then."""

    def __init__(self) -> None:
        self._inlet: Inlet | None = None
        self._before: list[tuple[Request | int, float]] = []

    def open(self, inlet: Inlet) -> None:
        """From now on all goes to `inlet`."""
        self._inlet = inlet
        for entry, at_s in self._before:
            if isinstance(entry, Request):
                inlet.submit_at(entry)
            else:
                inlet.abort_at(entry, at_s)

    def submit_at(self, request: Request) -> None:
        """See `Inlet`."""
        if self._inlet is None:
            self._before.append((request, request.arrival_s))
        else:
            self._inlet.submit_at(request)

    def abort_at(self, row: int, at_s: float) -> None:
        """See `Inlet`."""
        if self._inlet is None:
            self._before.append((row, at_s))
        else:
            self._inlet.abort_at(row, at_s)


class OnEnd(Protocol):
    """Is told of each request that ends, at that moment of the run: finished, rejected or aborted.

    `end_s` is now: the client has its last token, hears that it was rejected, or the engine has noticed the abort.
    `cause` says why a request was rejected, and is None for every other. What follows from it goes through an
    `Inlet`, at `end_s` or later: a request that arrives at `end_s` is seen by every decision of that moment.
    """

    def __call__(self, row: int, status: Status, end_s: float, cause: Cause | None) -> None: ...


class Timetable:
    """Requests that arrive of themselves, merged with the arrivals and aborts that are added while time passes.

    By time; at one time arrivals come before aborts, and each in order of rows. `due_s` is the time of the next entry,
    infinity without one.
    """

    __slots__ = ("_added", "_coming", "_following", "_requests", "due_s")

    def __init__(self, requests: Iterable[Request] = ()) -> None:
        self._requests = iter(requests)
        self._following: deque[Request] = deque()
        self._coming = next(self._requests, None)
        self._added: list[tuple[float, int, int, Request | None]] = []  # a heap
        self.due_s = inf if self._coming is None else self._coming.arrival_s

    def submit(self, request: Request) -> None:
        """Add an arrival."""
        self._add(request.arrival_s, _ARRIVAL, request.row, request)

    def follow(self, request: Request) -> None:
        """Add an arrival that comes after all those that arrive of themselves and all that followed before."""
        if self._coming is None:
            self._coming = request
            if request.arrival_s < self.due_s:
                self.due_s = request.arrival_s
        else:
            self._following.append(request)

    def abort(self, row: int, at_s: float) -> None:
        """Add an abort."""
        self._add(at_s, _ABORT, row, None)

    def take(self) -> Request | int:
        """Take out the next entry: a request that arrives, or the row of one that is aborted."""
        coming, added = self._coming, self._added
        if coming is not None and (not added or (coming.arrival_s, _ARRIVAL, coming.row) < added[0][:3]):
            entry: Request | int = coming
            coming = next(self._requests, None)
            if coming is None and self._following:
                coming = self._following.popleft()
            self._coming = coming
        else:
            _, _, row, request = heappop(added)
            entry = row if request is None else request
        due_s = inf if coming is None else coming.arrival_s
        self.due_s = added[0][0] if added and added[0][0] < due_s else due_s
        return entry

    def _add(self, at_s: float, kind: int, row: int, request: Request | None) -> None:
        heappush(self._added, (at_s, kind, row, request))
        if at_s < self.due_s:
            self.due_s = at_s
