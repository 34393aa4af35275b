"""A router of one's own: the replica with the least work, where a request that waits counts more than one that runs.

    batchlab run quickstart --set replicas=4 --set router=./my_router.py:MyRouter

A router is a class, made anew for each run, so it may remember. Its fields are its parameters: keys beside `kind` fill
them (`router: {kind: ./my_router.py:MyRouter, queue_weight: 0.5}`). `choose` is given the request as the client sent
it, and the replicas; it returns one of them. It never sees how long an answer will be.
`simulator/engine/admission.py` has all that a replica says of itself, `simulator/fleet/router.py` what else a router
may declare.
"""

from dataclasses import dataclass
from typing import Annotated

from annotated_types import Ge, doc

from simulator.engine.admission import ReplicaLoad
from simulator.fleet.router import Replicas
from simulator.request import ArrivingRequest


@dataclass(slots=True)
class MyRouter:
    """The replica with the smallest weighted number of requests; the first of equals."""

    waiting_weight: Annotated[float, Ge(0), doc("how much a waiting request counts, beside 1 for a running one")] = 2.0

    def choose(self, request: ArrivingRequest, replicas: Replicas) -> ReplicaLoad:
        """Return the replica for this request."""
        return min(replicas, key=self.work)

    def work(self, replica: ReplicaLoad) -> float:
        """Weighted number of requests on a replica."""
        return replica.num_running + self.waiting_weight * replica.num_waiting
