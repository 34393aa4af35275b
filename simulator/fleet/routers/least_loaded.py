"""The replica with the fewest unfinished requests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from simulator.engine.replica import Replica
    from simulator.request import Request


class LeastLoaded:
    """Give a request to the replica with the fewest unfinished requests; the first of equals."""

    def choose(self, request: Request, replicas: Sequence[Replica]) -> Replica:
        return min(replicas, key=lambda replica: replica.num_unfinished)
