"""From an arrival to a replica: the router chooses at the moment of the arrival, the replica's intake takes it."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence

from simpy.events import Event

from simulator.engine.clock import Clock
from simulator.engine.intake import Intake
from simulator.engine.view import ReplicaLoad
from simulator.errors import RouterError
from simulator.fleet.replicas import Replicas
from simulator.fleet.router import Router
from simulator.request import Request


class Dispatch:
    """Gives requests to replicas, each to the one that the router chooses as it arrives.

    `sent` is told the replica that a request went to, for signals that are not live.
    """

    def __init__(
        self,
        clock: Clock,
        router: Router,
        replicas: Replicas,
        intakes: Sequence[Intake],
        sent: Callable[[ReplicaLoad], None] | None = None,
    ) -> None:
        self._clock = clock
        self._router = router
        self._replicas = replicas
        self._intakes = intakes
        self._sent = sent

    def choose(self, request: Request) -> int:
        """The number of the replica that the router chooses. RouterError where it chooses none of them."""
        chosen = self._router.choose(request.arriving(), self._replicas)
        if not isinstance(chosen, ReplicaLoad):
            raise RouterError(f"the router chose {chosen!r} for request {request.request_id}, which is no replica")
        if self._sent is not None:
            self._sent(chosen)
        return chosen.index

    def submit(self, request: Request) -> int:
        """`request` arrives now; returns the replica that it went to."""
        chosen = self.choose(request)
        self._intakes[chosen].submit(request)
        return chosen

    def serve(self, requests: Iterator[Request]) -> Generator[Event, object, None]:
        """The SimPy process of requests in order of arrival: each before any decision of its moment."""
        clock = self._clock
        now_s = clock.now
        for request in requests:
            if request.arrival_s > now_s:
                now_s = request.arrival_s
                yield clock.at(now_s, urgent=True)
            self.submit(request)
