"""Which replica an arriving request is given to."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from simulator.engine.replica import Replica
from simulator.errors import InputError
from simulator.request import Request


class Router(Protocol):
    """Chooses a replica at the moment of arrival."""

    def choose(self, request: Request, replicas: Sequence[Replica]) -> Replica: ...


class RoundRobin:
    """One after the other."""

    def __init__(self) -> None:
        self._next = 0

    def choose(self, request: Request, replicas: Sequence[Replica]) -> Replica:
        replica = replicas[self._next % len(replicas)]
        self._next += 1
        return replica


class LeastLoaded:
    """The replica with the fewest unfinished requests; the first of equals."""

    def choose(self, request: Request, replicas: Sequence[Replica]) -> Replica:
        return min(replicas, key=lambda replica: replica.num_unfinished)


ROUTERS: dict[str, Callable[[], Router]] = {"round_robin": RoundRobin, "least_loaded": LeastLoaded}


def make_router(name: str) -> Router:
    """A new router of the name given."""
    if name not in ROUTERS:
        raise InputError(f"unknown router {name!r}", hint=f"known routers: {', '.join(ROUTERS)}")
    return ROUTERS[name]()
