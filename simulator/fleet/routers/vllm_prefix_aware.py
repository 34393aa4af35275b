"""The prefix-aware router of vLLM's production stack: the replica that was sent most of the prompt before.

The rule is that of its `PrefixAwareRouter` (`simulator/fleet/production_stack.py` says where it is; the least length of
a match by its pull requests 959 and 990) and `HashTrie` (src/vllm_router/prefix/hashtrie.py, 35e4ad37). Its pieces are
128 characters, about the 32 tokens of `block_size`, and a last piece that is not full counts as one; here it does not.
It looks at no load, and forgets nothing: `max_blocks` is ours. Its other routers are `round_robin`, `vllm_kv_aware`,
`vllm_load_aware` and, by session, `session_affinity`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, ClassVar

from annotated_types import Unit, doc

from simulator.fleet.production_stack import SentLately, StatsWindow
from simulator.fleet.prompt_table import CHARACTERS, BlockSize, Remembering
from simulator.parameters import CountOrZero

if TYPE_CHECKING:
    from simulator.engine.admission import ReplicaLoad
    from simulator.fleet.prompt_table import Stretch
    from simulator.fleet.router import Replicas
    from simulator.request import ArrivingRequest


@dataclass(slots=True)
class VllmPrefixAware(Remembering):
    """Give a request to a replica that was sent most of its prompt; of several, or none, to a random one.

    Where less than `prefix_min_match_length` was sent anywhere, it goes to the replica that was sent the fewest
    requests in the last `stats_window_s`, the first of equals. Loads do not matter, so a popular prefix may fill one
    replica.
    """

    reads_loads: ClassVar = False

    block_size: BlockSize = 32
    prefix_min_match_length: Annotated[
        CountOrZero, Unit("characters"), doc("shortest match that decides; a token has four characters")
    ] = 0
    stats_window_s: StatsWindow = 60.0
    _sent: SentLately = field(init=False, repr=False)

    def _prepare(self) -> None:
        self._sent = SentLately(self.stats_window_s)

    def _chosen(self, request: ArrivingRequest, prompt: list[Stretch], replicas: Replicas) -> ReplicaLoad:
        depth, numbers = self._table.longest(prompt, replicas.bits)
        if depth * self.block_size * CHARACTERS < self.prefix_min_match_length:
            chosen = self._sent.fewest(replicas, request.arrival_s)
        else:
            named = replicas.named(numbers) or replicas
            chosen = named[self._draws.below(len(named))]
        self._sent.add(chosen.index, request.arrival_s)
        return chosen
