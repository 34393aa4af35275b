"""Scores from 0 to 1 of replicas, one a replica in order, and the pick of the highest sum, as in llm-d-router.

Before, it was the Gateway API Inference Extension. Files are below pkg/epp/framework/plugins/scheduling/ there, as of
commit 683100dc or the one that is named; the cases of its own tests are ours
(tests/simulator/fleet/test_deployed_routers.py).
"""

from collections.abc import Mapping, Sequence

from simulator.engine.replica_load import ReplicaLoad

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
