"""The replica that knows the longest beginning of the prompt, unless the loads are too unequal.

After the router of SGLang, whose thresholds these are, with the defaults of its command line; `sglang_cache_aware` is
that router itself. Differences: of replicas that know equally much this one takes the least loaded; it forgets a
replica's blocks one by one as they become too many, not at intervals; and it may know what the caches hold.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from simulator.fleet.prompt_table import BlockSize, EventLag, Knowledge, MaxBlocks, PromptTable, Stretch, check_lag
from simulator.fleet.router import AbsThreshold, CacheThreshold, RelThreshold, knowing_enough, unfinished
from simulator.parameters import check_parameters

if TYPE_CHECKING:
    from simulator.engine.admission import ReplicaLoad
    from simulator.fleet.router import Replicas
    from simulator.request import ArrivingRequest


@dataclass(slots=True)
class PrefixAffinity:
    """Give a request to the replica that has seen most of its prompt, if that is more than `cache_threshold` of it.

    Otherwise, and while loads are unequal, it goes to the replica with the fewest unfinished requests. Loads are
    unequal when the most and the fewest unfinished requests differ by more than `balance_abs_threshold` and by more
    than the factor `balance_rel_threshold`. Of replicas that know equally much it is the one with the fewest unfinished
    requests, then the first.
    """

    knowledge: Knowledge = "approximate"
    cache_threshold: CacheThreshold = 0.3
    balance_abs_threshold: AbsThreshold = 64
    balance_rel_threshold: RelThreshold = 1.5
    block_size: BlockSize = 16
    max_blocks: MaxBlocks = 1_000_000
    kv_event_lag_s: EventLag = 0.0
    _table: PromptTable = field(init=False, repr=False)

    def __post_init__(self) -> None:
        check_parameters(self)
        check_lag(self.kv_event_lag_s, hears=self.reads_caches)
        self._table = PromptTable(self.block_size, self.max_blocks)

    @property
    def reads_caches(self) -> bool:
        """Only exact knowledge asks the caches."""
        return self.knowledge == "exact"

    def choose(self, request: ArrivingRequest, replicas: Replicas) -> ReplicaLoad:
        prompt = [] if self.reads_caches else self._table.stretches(request)
        _, numbers = knowing_enough(self, request, replicas, lambda: self._known(request, prompt, replicas))
        chosen = min(replicas.named(numbers), key=unfinished) if numbers else replicas.least(unfinished)
        if not self.reads_caches:
            self._table.add(prompt, chosen.index)
        return chosen

    def _known(self, request: ArrivingRequest, prompt: list[Stretch], replicas: Replicas) -> tuple[int, list[int]]:
        """The most tokens of the prompt that are known, and where."""
        if not self.reads_caches:
            depth, numbers = self._table.longest(prompt, replicas.bits)
            return depth * self.block_size, numbers
        tokens = {load.index: load.cached_tokens(request) for load in replicas}
        most = max(tokens.values())
        return most, [number for number, known in tokens.items() if known == most]
