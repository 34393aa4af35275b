"""From an arrival to a replica: the router chooses at the moment of the arrival, the replica's intake takes it."""

from __future__ import annotations

from collections.abc import Sequence

from simulator.engine.intake import Intake
from simulator.engine.view import ReplicaLoad
from simulator.errors import RouterError
from simulator.fleet.router import Router
from simulator.request import Request


class Dispatch:
    """Gives requests to replicas, each to the one that the router chooses as it arrives."""

    def __init__(self, router: Router, loads: Sequence[ReplicaLoad], intakes: Sequence[Intake]) -> None:
        self._router = router
        self._loads = loads
        self._intakes = intakes

    def abort(self, replica: int, row: int) -> None:
        """The client of a request that this replica has leaves now; without effect if the request has ended."""
        self._intakes[replica].abort(row)

    def has_begun(self, replica: int, row: int) -> bool:
        """Whether the client of a request that this replica has got a first token before now."""
        return self._intakes[replica].has_begun(row)

    def submit(self, request: Request) -> int:
        """`request` arrives now; returns the replica that it went to."""
        chosen = self._router.choose(request.arriving(), self._loads)
        if not isinstance(chosen, ReplicaLoad):
            raise RouterError(f"the router chose {chosen!r} for request {request.request_id}, which is no replica")
        self._intakes[chosen.index].submit(request)
        return chosen.index
