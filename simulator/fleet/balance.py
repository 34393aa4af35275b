"""How unequal the loads of replicas are, and SGLang's rule for when a known prefix outweighs them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Protocol

from annotated_types import Ge, Le, Unit, doc

from simulator.parameters import CountOrZero

if TYPE_CHECKING:
    from simulator.engine.replica_load import ReplicaLoad
    from simulator.fleet.replicas import Replicas
    from simulator.request import ArrivingRequest

CacheThreshold = Annotated[
    float, Ge(0), Le(1), doc("share of the prompt that a replica must know, so that the router prefers it")
]
AbsThreshold = Annotated[CountOrZero, Unit("requests"), doc("largest difference of loads that the router accepts")]
RelThreshold = Annotated[float, Ge(1), Le(1e9), doc("largest ratio of loads that the router accepts")]


class Thresholds(Protocol):
    """SGLang's thresholds."""

    cache_threshold: float
    balance_abs_threshold: int
    balance_rel_threshold: float


def unfinished(replica: ReplicaLoad) -> int:
    """Requests waiting or running."""
    return replica.num_unfinished


def _busiest(replica: ReplicaLoad) -> int:
    """The fewest unfinished requests, negated."""
    return -replica.num_unfinished


def fewest_and_most(replicas: Replicas) -> tuple[int, int]:
    """The fewest and the most unfinished requests of any replica."""
    return replicas.least(unfinished).num_unfinished, replicas.least(_busiest).num_unfinished


def are_unequal(fewest: int, most: int, most_apart: int, most_ratio: float) -> bool:
    """True if the most is too much more than the fewest, by difference and by ratio."""
    return most - fewest > most_apart and most > most_ratio * fewest


def knowing_enough(
    thresholds: Thresholds,
    request: ArrivingRequest,
    replicas: Replicas,
    known: Callable[[], tuple[int, list[int]]],
) -> tuple[int, list[int]]:
    """The tokens of the prompt that are known at most, and the numbers of the replicas that know them, as `known` says.

    No replica is named while loads are unequal, or where too little of the prompt is known. After `select_worker` in
    sgl-model-gateway/src/policies/cache_aware.rs, sglang-router 0.3.2.
    """
    fewest, most = fewest_and_most(replicas)
    if are_unequal(fewest, most, thresholds.balance_abs_threshold, thresholds.balance_rel_threshold):
        return 0, []
    tokens, numbers = known()
    return (tokens, numbers) if tokens > thresholds.cache_threshold * request.input_tokens else (0, [])
