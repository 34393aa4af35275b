"""From an arrival to a replica: the router chooses at the moment of the arrival, the replica's intake takes it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from simulator.engine.admission import Admission
from simulator.engine.intake import Intake
from simulator.engine.replica_load import ReplicaLoad
from simulator.errors import RouterError
from simulator.fleet.regret import Regret
from simulator.fleet.replicas import Replicas
from simulator.fleet.router import Router
from simulator.request import Request

if TYPE_CHECKING:
    from simulator.fleet.tokens_in_flight import TokensInFlight


class Dispatch:
    """Gives requests to replicas, each to the one that the router chooses as it arrives.

    `sent` is told the replica that a request went to, for signals that are not live.
    """

    def __init__(
        self,
        router: Router,
        replicas: Replicas,
        intakes: Sequence[Intake],
        sent: Callable[[ReplicaLoad], None] | None = None,
    ) -> None:
        self._router = router
        self.replicas = replicas
        self._intakes = intakes
        self._sent = sent
        self.regret: Regret | None = None  # is told of each choice
        self.admission: Admission | None = None  # of the one server that all replicas are behind
        self.in_flight: TokensInFlight | None = None  # likewise told

    @property
    def sides(self) -> Sequence[Replicas]:
        """All that requests may go to."""
        return (self.replicas,)

    def count_tokens(self, in_flight: TokensInFlight) -> None:
        """Let it be told of the prompts that are sent."""
        self.in_flight = in_flight

    def abort(self, replica: int, row: int) -> None:
        """The client of a request that this replica has leaves now; without effect if the request has ended."""
        self._intakes[replica].abort(row)

    def has_begun(self, replica: int, row: int) -> bool:
        """True if the client of a request on this replica got its first token before now."""
        return self._intakes[replica].has_begun(row)

    def choose(self, request: Request) -> int:
        """The number of the replica that the router chooses. RouterError where it chooses none of them.

        Where the server will reject the request, the router is not asked: the first replica tells of it.
        """
        if self.admission is not None and self.admission.refusal_of(request) is not None:
            return self.replicas[0].index
        chosen = self._router.choose(request.arriving(), self.replicas)
        if not isinstance(chosen, ReplicaLoad):
            raise RouterError(f"the router chose {chosen!r} for request {request.request_id}, which is no replica")
        if self.regret is not None:
            self.regret.chosen(request.arriving(), self.replicas, chosen.index)
        if self.in_flight is not None:
            self.in_flight.sent(request.arriving(), chosen.index)
        if self._sent is not None:
            self._sent(chosen)
        return chosen.index

    def submit(self, request: Request) -> int:
        """`request` arrives now; returns the replica that it went to."""
        chosen = self.choose(request)
        self._intakes[chosen].submit(request)
        return chosen
