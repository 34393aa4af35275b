"""Regret of a router: for each request, what the replica that would have been best for it had, beside the chosen one.

Two things are told, each against the best of all replicas at that moment: how much of the prompt lies in the prefix
cache, and how many unfinished requests are there. No router can have both at once, so the sum is a bound of what a
better choice could gain, request by request, as long as earlier choices stay as they were.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from simulator.fleet.router import RouterFeatures

if TYPE_CHECKING:
    from simulator.engine.replica import Replica
    from simulator.engine.replica_load import ReplicaLoad
    from simulator.fleet.replicas import Replicas
    from simulator.fleet.router import Router
    from simulator.request import ArrivingRequest


class WithRegret:
    """A router that chooses as another does, and of whose choices the regret is told.

    The prefix caches are asked at every arrival, so every step is executed by itself.
    """

    reads_caches = True
    tells_regret = True

    def __init__(self, router: Router) -> None:
        self._router = router
        features = RouterFeatures.of(router)
        self.hears_ends = features.hears_ends
        self.hears_first_tokens = features.hears_first_tokens
        self.one_server = features.one_server

    def __getattr__(self, name: str) -> Any:
        return getattr(self._router, name)

    def choose(self, request: ArrivingRequest, replicas: Replicas) -> ReplicaLoad:
        return self._router.choose(request, replicas)


class Regret:
    """Told of each choice; `tell` gets a row of `simulator.results.records.RegretColumns`."""

    def __init__(self, replicas: Sequence[Replica], tell: Callable[[tuple[int, ...]], None]) -> None:
        self._replicas = {replica.index: replica for replica in replicas}
        self._tell = tell

    def chosen(self, request: ArrivingRequest, replicas: Replicas, number: int) -> None:
        """A request goes to the replica of this number, one of `replicas`."""
        here = [self._replicas[load.index] for load in replicas]
        cached = {replica.index: replica.state.cached_tokens(request) for replica in here}
        fewest = min([replica.load.num_unfinished for replica in here])
        unfinished = self._replicas[number].load.num_unfinished
        self._tell((request.row, cached[number], max(cached.values()), unfinished, fewest))
