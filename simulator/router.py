"""Routers: the replica that an arriving request is given to."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from simulator.engine.view import ReplicaLoad
from simulator.errors import InputError
from simulator.request import ArrivingRequest


class Router(Protocol):
    """Chooses a replica at the moment of arrival, by the request as the client sent it and by the replicas' loads."""

    def choose(self, request: ArrivingRequest, replicas: Sequence[ReplicaLoad]) -> ReplicaLoad:
        """One of `replicas`, which are in order of their index."""


class RoundRobin:
    """One after the other."""

    def __init__(self) -> None:
        self._next = 0

    def choose(self, request: ArrivingRequest, replicas: Sequence[ReplicaLoad]) -> ReplicaLoad:
        replica = replicas[self._next % len(replicas)]
        self._next += 1
        return replica


class LeastLoaded:
    """The replica with the fewest unfinished requests; the first of equals."""

    def choose(self, request: ArrivingRequest, replicas: Sequence[ReplicaLoad]) -> ReplicaLoad:
        return min(replicas, key=lambda replica: replica.num_unfinished)


ROUTERS: dict[str, Callable[[], Router]] = {"round_robin": RoundRobin, "least_loaded": LeastLoaded}


def make_router(name: str) -> Router:
    """A new router of the name given."""
    if name not in ROUTERS:
        raise InputError(f"unknown router {name!r}", hint=f"known routers: {', '.join(ROUTERS)}")
    return ROUTERS[name]()
