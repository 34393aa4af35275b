"""The replica with the fewest unfinished requests."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from simulator.fleet.router import unfinished

if TYPE_CHECKING:
    from simulator.engine.admission import ReplicaLoad
    from simulator.fleet.router import Replicas
    from simulator.request import ArrivingRequest


class LeastLoaded:
    """Give a request to the replica with the fewest unfinished requests; the first of equals."""

    takes_fewest: ClassVar = True

    def choose(self, request: ArrivingRequest, replicas: Replicas) -> ReplicaLoad:
        return replicas.least(unfinished)
