"""Each replica in turn."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from simulator.engine.admission import ReplicaLoad
    from simulator.fleet.router import Replicas
    from simulator.request import ArrivingRequest


class RoundRobin:
    """Give requests to the replicas in turn."""

    reads_loads: ClassVar = False

    def __init__(self) -> None:
        self._next = 0

    def choose(self, request: ArrivingRequest, replicas: Replicas) -> ReplicaLoad:
        replica = replicas[self._next % len(replicas)]
        self._next += 1
        return replica
