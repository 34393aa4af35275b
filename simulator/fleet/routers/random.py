"""Any replica, by chance."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from simulator.engine.replica_load import ReplicaLoad
    from simulator.fleet.draws import Draws
    from simulator.fleet.replicas import Replicas
    from simulator.request import ArrivingRequest


class Random:
    """Give each request to a replica drawn at random, all equally likely."""

    reads_loads: ClassVar = False

    def start(self, draws: Draws) -> None:
        """The random numbers of the run."""
        self._draws = draws

    def choose(self, request: ArrivingRequest, replicas: Replicas) -> ReplicaLoad:
        return replicas[self._draws.below(len(replicas))]
