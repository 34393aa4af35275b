"""The prefix-aware router of vLLM's production stack: the replica that was sent most of the prompt before.

The rule is that of its `PrefixAwareRouter` (src/vllm_router/routers/routing_logic.py, 008a23bd) and `HashTrie`
(src/vllm_router/prefix/hashtrie.py, 35e4ad37). Its pieces are 128 characters, about the 32 tokens of `block_size`; it
looks at no load and forgets nothing. Its other routers are `round_robin` and, by session, `session_affinity`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

from simulator.fleet.draws import Draws
from simulator.fleet.prompt_table import PromptTable
from simulator.fleet.routers.prefix_affinity import BlockSize, MaxBlocks
from simulator.parameters import check_parameters

if TYPE_CHECKING:
    from simulator.engine.replica_load import ReplicaLoad
    from simulator.fleet.replicas import Replicas
    from simulator.request import ArrivingRequest


@dataclass(slots=True)
class VllmPrefixAware:
    """Give a request to a replica that was sent most of its prompt; of several, or none, to a random one.

    Loads do not matter, so a popular prefix may fill one replica.
    """

    reads_loads: ClassVar = False

    block_size: BlockSize = 32
    max_blocks: MaxBlocks = 1_000_000
    _table: PromptTable = field(init=False, repr=False)
    _draws: Draws = field(init=False, repr=False)

    def __post_init__(self) -> None:
        check_parameters(self)
        self._table = PromptTable(self.block_size, self.max_blocks)

    def start(self, draws: Draws) -> None:
        """The random numbers of the run."""
        self._draws = draws

    def choose(self, request: ArrivingRequest, replicas: Replicas) -> ReplicaLoad:
        prompt = self._table.stretches(request)
        _, numbers = self._table.longest(prompt)
        named = replicas.named(numbers) or replicas
        chosen = named[self._draws.below(len(named))]
        self._table.add(prompt, chosen.index)
        return chosen
