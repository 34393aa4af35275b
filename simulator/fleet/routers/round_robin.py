"""Each replica in turn."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from simulator.engine.view import ReplicaLoad
    from simulator.request import ArrivingRequest


class RoundRobin:
    """Give requests to the replicas in turn."""

    def __init__(self) -> None:
        self._next = 0

    def choose(self, request: ArrivingRequest, replicas: Sequence[ReplicaLoad]) -> ReplicaLoad:
        replica = replicas[self._next % len(replicas)]
        self._next += 1
        return replica
