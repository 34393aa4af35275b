"""The replica that has requests of the adapter already, as llm-d's endpoint picker scores it.

The scores are those of llm-d-router (before: the Gateway API Inference Extension), below
pkg/epp/framework/plugins/scheduling/. An adapter scores 1 where a replica has it, 0.8 where the replica has fewer than
`max_loras`, else 0 (scorer/loraaffinity/lora_affinity.go:101). The shortest queue scores 1, the longest 0, others in
proportion (scorer/queuedepth/queue.go). KV scores its free share (scorer/kvcacheutilization). The weighted scores are
added up, and equals take turns (picker/maxscore/picker.go, picker/common.go). The weights of queue and KV are those of
its default profile, that of the adapter is what a scorer without a weight counts (pkg/epp/config/loader/defaults.go).

A replica has the adapters of its requests, waiting or running: vLLM's metric `vllm:lora_requests_info` names both as
running and as waiting what either has (0.33, v1/metrics/stats.py:703). Adapters that lie in a slot and that no request
uses are in no metric. A request for the model itself is scored as one whose adapter no replica has.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated

from annotated_types import doc

from simulator.parameters import Factor, check_parameters

if TYPE_CHECKING:
    from collections.abc import Sequence

    from simulator.engine.replica_load import ReplicaLoad
    from simulator.fleet.replicas import Replicas
    from simulator.request import ArrivingRequest

_THERE, _ROOM = 1.0, 0.8


@dataclass(slots=True)
class LoraAffinity:
    """Give a request to the replica of the highest score; equals take turns.

    score = lora x (1 where a request of the adapter is, 0.8 where the requests there use fewer than `max_loras`, else
    0) + queue x (most waiting - waiting) / (most - fewest waiting) + kv x free / usable KV blocks.
    """

    lora: Annotated[Factor, doc("weight of having requests of the adapter")] = 1.0
    queue: Annotated[Factor, doc("weight of a short queue")] = 2.0
    kv: Annotated[Factor, doc("weight of free KV blocks")] = 2.0
    _turn: int = field(default=0, init=False, repr=False)

    def __post_init__(self) -> None:
        check_parameters(self)
        if not (self.lora or self.queue or self.kv):
            raise ValueError("lora, queue and kv are 0: at least one must be above")

    def choose(self, request: ArrivingRequest, replicas: Replicas) -> ReplicaLoad:
        scores = self._scores(request.lora, replicas)
        best = max(scores)
        equals = [load for load, score in zip(replicas, scores, strict=True) if score == best]
        if len(equals) == 1:
            return equals[0]
        chosen = equals[self._turn % len(equals)]
        self._turn = (self._turn + 1) % len(equals)
        return chosen

    def _scores(self, lora: str | None, replicas: Sequence[ReplicaLoad]) -> list[float]:
        queues = [load.num_waiting for load in replicas]
        longest = max(queues)
        span = longest - min(queues)
        return [
            self.lora * _affinity(lora, load)
            + self.queue * ((longest - waiting) / span if span else 1.0)
            + self.kv * (1.0 - load.kv_utilization)
            for load, waiting in zip(replicas, queues, strict=True)
        ]


def _affinity(lora: str | None, load: ReplicaLoad) -> float:
    if lora in load.loras:
        return _THERE
    return _ROOM if len(load.loras) < load.max_loras else 0.0
