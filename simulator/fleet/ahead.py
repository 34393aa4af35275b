"""Requests dealt to replicas ahead of their arrival, for a router that does not look at loads.

Its choices depend on the requests alone, so they may be made before the requests arrive. A replica then knows its next
arrival as a lone one does: no arrival needs an event, and no step is worked out beyond one that matters.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from itertools import islice

from simpy.events import Event

from simulator.engine.clock import URGENT, Clock
from simulator.engine.intake import Intake
from simulator.request import Request

_FEWEST, _PER_REPLICA = 4096, 64  # requests dealt at a time


class DealAhead:
    """Deals requests in pieces: the next when the last request of the piece before arrives."""

    def __init__(self, clock: Clock, choose: Callable[[Request], int], intakes: Sequence[Intake]) -> None:
        self._clock = clock
        self._choose = choose
        self._intakes = intakes
        self._most = max(_FEWEST, _PER_REPLICA * len(intakes))

    def serve(self, requests: Iterator[Request]) -> Generator[Event, object, None]:
        """The SimPy process; `requests` are in order of arrival."""
        while piece := list(islice(requests, self._most)):
            for request in piece:
                self._intakes[self._choose(request)].submit_at(request)
            yield self._clock.at(piece[-1].arrival_s, URGENT)
