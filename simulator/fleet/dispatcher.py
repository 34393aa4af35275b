"""Gives each request to a replica at the moment it arrives, and tells that replica of its abort."""

from __future__ import annotations

from collections.abc import Generator, Iterable
from math import inf
from typing import Protocol

from simpy.events import Event

from simulator.engine.clock import FOLLOW_UP, URGENT, Clock, EventPriority
from simulator.engine.timetable import Timetable
from simulator.request import Request


class Servers(Protocol):
    """What requests and aborts are given to, at their time."""

    def submit(self, request: Request) -> int:
        """`request` arrives now; returns the replica that it went to."""

    def abort(self, replica: int, row: int) -> None:
        """The client of a request leaves now; without effect if it has ended."""


class Dispatcher:
    """The `Inlet` of several replicas; `serve` is its SimPy process.

    Requests arrive before any decision of their moment. `is_open` says that more may come by `submit_at` and
    `abort_at`: then each request's replica is remembered.
    """

    def __init__(
        self,
        clock: Clock,
        requests: Iterable[Request],
        dispatch: Servers,
        *,
        is_open: bool,
    ) -> None:
        self._clock = clock
        self._timetable = Timetable(requests)
        self._dispatch = dispatch
        self._is_open = is_open
        self._given_to: dict[int, int] = {}  # by row
        self._pause: Event | None = None
        self._until_s = inf

    def submit_at(self, request: Request) -> None:
        """See `Inlet`."""
        self._timetable.submit(request)
        self._expect(request.arrival_s)

    def abort_at(self, row: int, at_s: float) -> None:
        """See `Inlet`."""
        self._timetable.abort(row, at_s)
        self._expect(at_s)

    def _expect(self, at_s: float) -> None:
        """Wake up at `at_s`, if that is earlier than before."""
        if self._pause is not None and at_s < self._until_s:
            self._until_s = at_s
            self._pause = self._clock.move(self._pause, at_s, self._phase(at_s))

    def _phase(self, at_s: float) -> EventPriority:
        """What is born now comes after all that ends now."""
        return URGENT if at_s > self._clock.now else FOLLOW_UP

    def serve(self) -> Generator[Event, object, None]:
        """Sleep until something is due, and let it happen, for ever."""
        clock, timetable = self._clock, self._timetable
        while True:
            now_s = clock.now
            while timetable.due_s <= now_s:
                entry = timetable.take()
                if isinstance(entry, Request):
                    self._give(entry)
                elif entry in self._given_to:
                    self._dispatch.abort(self._given_to.pop(entry), entry)
            if timetable.due_s == inf and not self._is_open:
                return
            self._until_s = due_s = timetable.due_s
            self._pause = clock.event() if due_s == inf else clock.at(due_s, URGENT)
            yield self._pause
            self._pause = None

    def _give(self, request: Request) -> None:
        replica = self._dispatch.submit(request)
        if self._is_open:
            self._given_to[request.row] = replica
