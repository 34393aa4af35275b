"""What a router is: the choice of a replica for each request at the moment of its arrival."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from simulator.engine.view import ReplicaLoad
    from simulator.request import ArrivingRequest


class Router(Protocol):
    """Chooses a replica at the moment of arrival, by the request as the client sent it and by the replicas' loads."""

    def choose(self, request: ArrivingRequest, replicas: Sequence[ReplicaLoad]) -> ReplicaLoad:
        """One of `replicas`, which are in the order of their numbers."""
