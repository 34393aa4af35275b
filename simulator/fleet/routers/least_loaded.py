"""The replica with the fewest unfinished requests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from simulator.engine.view import ReplicaLoad
    from simulator.request import ArrivingRequest


class LeastLoaded:
    """Give a request to the replica with the fewest unfinished requests; the first of equals."""

    def choose(self, request: ArrivingRequest, replicas: Sequence[ReplicaLoad]) -> ReplicaLoad:
        return min(replicas, key=lambda replica: replica.num_unfinished)
