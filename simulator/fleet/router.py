"""What a router is: the choice of a replica for each request at the moment of its arrival."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from simulator.engine.replica import Replica
    from simulator.request import Request


class Router(Protocol):
    """Chooses a replica at the moment of arrival, before any decision of that moment."""

    def choose(self, request: Request, replicas: Sequence[Replica]) -> Replica:
        """One of `replicas`, which are in the order of their numbers."""
