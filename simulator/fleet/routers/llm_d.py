"""The endpoint picker of llm-d and of the Gateway API Inference Extension, in its default profile.

It scores queue, use of KV, and the share of the prompt that it sent to a server before; `simulator/fleet/scorers.py`
names the files. Weights 2, 2 and 3 are those of its default profile (docs of the prefix-cache plugin: weight 3 beside 2
and 2). Of each server it remembers the 31,250 blocks used last (`lruCapacityPerServer`), and of a prompt it looks at
the first 256 blocks (`maxPrefixBlocksToMatch`). It scrapes its metrics every 50 ms: the usual `signal_interval_s` here.
It is not run here: these are its rules.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, ClassVar

from annotated_types import Ge, Le, Unit, doc

from simulator.fleet.prompt_table import PromptTable
from simulator.fleet.routers.prefix_affinity import BlockSize, MaxBlocks
from simulator.fleet.scorers import HighestInTurn, kv_scores, lora_scores, prefix_scores, queue_scores, weighted_sum
from simulator.parameters import Factor, check_parameters

if TYPE_CHECKING:
    from simulator.engine.replica_load import ReplicaLoad
    from simulator.fleet.replicas import Replicas
    from simulator.request import ArrivingRequest


@dataclass(slots=True)
class LlmD:
    """Give a request to the replica of the highest score; equals take turns.

    score = prefix x share of the prompt's blocks that went there before + queue x (most waiting - waiting) / (most -
    fewest waiting) + kv x free / usable KV blocks + lora x (1 where requests of its adapter are, 0.8 where there is
    room for another, else 0).
    """

    usual_interval_s: ClassVar = 0.05

    prefix: Annotated[Factor, doc("weight of the share of the prompt that went there before")] = 3.0
    queue: Annotated[Factor, doc("weight of a short queue")] = 2.0
    kv: Annotated[Factor, doc("weight of free KV blocks")] = 2.0
    lora: Annotated[Factor, doc("weight of having requests of the adapter")] = 0.0
    max_prefix_blocks: Annotated[
        int, Ge(1), Le(10**9), Unit("blocks"), doc("blocks of a prompt that are looked at")
    ] = 256
    block_size: BlockSize = 16
    max_blocks: MaxBlocks = 31_250
    _table: PromptTable = field(init=False, repr=False)
    _picker: HighestInTurn = field(init=False, repr=False, default_factory=HighestInTurn)

    def __post_init__(self) -> None:
        check_parameters(self)
        if not (self.prefix or self.queue or self.kv or self.lora):
            raise ValueError("prefix, queue, kv and lora are 0: at least one must be above")
        self._table = PromptTable(self.block_size, self.max_blocks)

    def choose(self, request: ArrivingRequest, replicas: Replicas) -> ReplicaLoad:
        keys = self._table.keys(request)[: self.max_prefix_blocks] if self.prefix else []
        scores = [
            (self.prefix, prefix_scores(self._table.shares(keys), len(keys), replicas)),
            (self.queue, queue_scores(replicas)),
            (self.kv, kv_scores(replicas)),
        ]
        if self.lora:
            scores.append((self.lora, lora_scores(request.lora, replicas)))
        chosen = self._picker.pick(weighted_sum(scores), replicas)
        self._table.add(keys, chosen.index)
        return chosen
