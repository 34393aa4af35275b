"""The replica with the emptiest KV cache."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from simulator.engine.admission import ReplicaLoad
    from simulator.fleet.router import Replicas
    from simulator.request import ArrivingRequest


class LeastKv:
    """Give a request to the replica that uses the smallest share of its KV blocks; then the one that comes first.

    What waits uses no block yet: a replica may be given many requests before its use of KV shows it.
    """

    def choose(self, request: ArrivingRequest, replicas: Replicas) -> ReplicaLoad:
        return replicas.least(kv_utilization)


def kv_utilization(replica: ReplicaLoad) -> float:
    """Used / usable KV blocks."""
    return replica.kv_utilization
