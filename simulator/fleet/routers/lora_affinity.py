"""The replica that has requests of the adapter already, as llm-d's endpoint picker scores it.

The scores are those of llm-d-router (before: the Gateway API Inference Extension); `simulator/fleet/router.py`
says where they are. The weighted scores are added up, and equals take turns. The weights of queue and KV are those of
its default profile, that of the adapter is what a scorer without a weight counts (pkg/epp/config/loader/defaults.go).

A replica has the adapters of its requests, waiting or running. Adapters that lie in a slot and that no request uses are
in no metric. A request for the model itself is scored as one whose adapter no replica has.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated

from annotated_types import doc

from simulator.fleet.router import HighestInTurn, kv_scores, lora_scores, queue_scores, weighted_sum
from simulator.parameters import Factor, check_parameters

if TYPE_CHECKING:
    from simulator.engine.admission import ReplicaLoad
    from simulator.fleet.router import Replicas
    from simulator.request import ArrivingRequest


@dataclass(slots=True)
class LoraAffinity:
    """Give a request to the replica of the highest score; equals take turns.

    score = lora x (1 where a request of the adapter is, 0.8 where the requests there use less than half of `max_loras`,
    else 0) + queue x (most waiting - waiting) / (most - fewest waiting) + kv x free / usable KV blocks.
    """

    lora: Annotated[Factor, doc("weight of having requests of the adapter")] = 1.0
    queue: Annotated[Factor, doc("weight of a short queue")] = 2.0
    kv: Annotated[Factor, doc("weight of free KV blocks")] = 2.0
    _picker: HighestInTurn = field(init=False, repr=False, default_factory=HighestInTurn)

    def __post_init__(self) -> None:
        check_parameters(self)
        if not (self.lora or self.queue or self.kv):
            raise ValueError("lora, queue and kv are 0: at least one must be above")

    def choose(self, request: ArrivingRequest, replicas: Replicas) -> ReplicaLoad:
        scores = (
            (self.lora, lora_scores(request.lora, replicas)),
            (self.queue, queue_scores(replicas)),
            (self.kv, kv_scores(replicas)),
        )
        return self._picker.pick(weighted_sum(scores), replicas)
