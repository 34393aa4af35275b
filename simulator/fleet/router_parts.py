"""Parts of several routers: how unequal loads are, scores of replicas, and a ring of hashes."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from hashlib import blake2b
from typing import TYPE_CHECKING, Annotated, Protocol

from annotated_types import Ge, Le, Unit, doc

from simulator.engine.replica_load import ReplicaLoad
from simulator.fleet.replicas import Replicas
from simulator.parameters import CountOrZero

if TYPE_CHECKING:
    from simulator.request import ArrivingRequest


# How unequal the loads of replicas are, and SGLang's rule for when a known prefix outweighs them.

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


# Scores from 0 to 1 of replicas, one a replica in order, and the pick of the highest sum, as in llm-d-router.
#
# Before, it was the Gateway API Inference Extension. Files are below pkg/epp/framework/plugins/scheduling/ there,
# as of commit 683100dc or the one that is named; the cases of its own tests are ours
# (tests/simulator/fleet/test_deployed_routers.py).

_THERE, _ROOM = 1.0, 0.8


def queue_scores(loads: Sequence[ReplicaLoad]) -> list[float]:
    """The shortest queue scores 1, the longest 0, others in proportion (scorer/queuedepth/queue.go)."""
    queues = [load.num_waiting for load in loads]
    longest = max(queues)
    span = longest - min(queues)
    return [(longest - waiting) / span if span else 1.0 for waiting in queues]


def kv_scores(loads: Sequence[ReplicaLoad]) -> list[float]:
    """The free share of the KV blocks (scorer/kvcacheutilization)."""
    return [1.0 - load.kv_utilization for load in loads]


def lora_scores(lora: str | None, loads: Sequence[ReplicaLoad]) -> list[float]:
    """1 where the adapter is in use, 0.8 where there is room for another, else 0.

    There is room where the adapters that run and those that wait, together, are fewer than `max_loras`
    (scorer/loraaffinity/lora_affinity.go, 533a218d). vLLM's metric `vllm:lora_requests_info` names each adapter that
    has a request as both (0.33, v1/metrics/stats.py:703), so each counts twice, and none is known only to wait.
    """
    return [_THERE if lora in load.loras else _ROOM if 2 * len(load.loras) < load.max_loras else 0.0 for load in loads]


def prefix_scores(known_blocks: Mapping[int, int], blocks: int, loads: Sequence[ReplicaLoad]) -> list[float]:
    """The share of the prompt's blocks that went to each replica before, by its number (scorer/prefix/plugin.go)."""
    return [known_blocks.get(load.index, 0) / blocks if blocks else 0.0 for load in loads]


class HighestInTurn:
    """Picks a replica of the highest score; equals take turns (picker/maxscore/picker.go, picker/common.go).

    One counter serves all ties. A tie of n takes the place counter mod n, and then the counter goes on by one, or back
    to 0 if it is n or more by then (`RotateScoredEndpoints`).
    """

    def __init__(self) -> None:
        self._turn = 0

    def pick(self, scores: Sequence[float], loads: Sequence[ReplicaLoad]) -> ReplicaLoad:
        best = max(scores)
        equals = [load for load, score in zip(loads, scores, strict=True) if score == best]
        if len(equals) == 1:
            return equals[0]
        chosen = equals[self._turn % len(equals)]
        self._turn = self._turn + 1 if self._turn + 1 < len(equals) else 0
        return chosen


def weighted_sum(weighted: Sequence[tuple[float, Sequence[float]]]) -> list[float]:
    """The sum of weight x score, replica by replica."""
    return [
        sum(each) for each in zip(*([weight * score for score in scores] for weight, scores in weighted), strict=True)
    ]


# A ring of hashes: each replica owns points of it, and a name belongs to the next point after its own.
#
# D. Karger et al., Consistent Hashing and Random Trees, STOC 1997: when a replica joins or leaves, only the names
# next to its points move.


class HashRing:
    """The ring of the replicas that take requests now, with so many points each."""

    def __init__(self, virtual_nodes: int) -> None:
        self._virtual_nodes = virtual_nodes
        self._ring: list[tuple[int, int]] = []  # (point, number)
        self._seen: object = None
        self._version = -1

    def after(self, name: str, replicas: Replicas) -> Iterator[ReplicaLoad]:
        """All replicas, in the order of their first points after that of `name`."""
        if replicas is not self._seen or replicas.version != self._version:
            self._seen, self._version = replicas, replicas.version
            points = range(self._virtual_nodes)
            self._ring = sorted((_point(f"replica {load.index}.{i}"), load.index) for load in replicas for i in points)
        ring = self._ring
        start = bisect_right(ring, (_point(name), -1))
        met = set()
        for place in range(start, start + len(ring)):
            number = ring[place % len(ring)][1]
            if number not in met:
                met.add(number)
                yield replicas.by_number[number]


def _point(name: str) -> int:
    return int.from_bytes(blake2b(name.encode(), digest_size=8).digest(), "big")
