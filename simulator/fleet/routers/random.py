"""Any replica, by chance."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from simulator.fleet.router import Drawing

if TYPE_CHECKING:
    from simulator.engine.admission import ReplicaLoad
    from simulator.fleet.router import Replicas
    from simulator.request import ArrivingRequest


class Random(Drawing):
    """Give each request to a replica drawn at random, all equally likely."""

    reads_loads: ClassVar = False

    def choose(self, request: ArrivingRequest, replicas: Replicas) -> ReplicaLoad:
        return replicas[self._draws.below(len(replicas))]
