"""The replica that knows the longest beginning of the prompt, unless the loads are too unequal.

After the router of SGLang, whose thresholds these are, with the defaults of its command line; `sglang_cache_aware` is
that router itself. Differences: of replicas that know equally much this one takes the least loaded; it forgets a
replica's blocks one by one as they become too many, not at intervals; and it may know what the caches hold.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Literal

from annotated_types import Ge, Le, Unit, doc

from simulator.fleet.prompt_table import PromptTable, Stretch
from simulator.fleet.routers.least_loaded import unfinished
from simulator.parameters import CountOrZero, check_parameters

if TYPE_CHECKING:
    from simulator.engine.replica_load import ReplicaLoad
    from simulator.fleet.replicas import Replicas
    from simulator.request import ArrivingRequest

Knowledge = Annotated[
    Literal["approximate", "exact"],
    doc("approximate: the router remembers what it sent where; exact: it knows what each prefix cache holds"),
]
EventLag = Annotated[
    float, Ge(0), Le(1e9), Unit("s"), doc("exact: the router knows what the caches held so many seconds ago")
]
BlockSize = Annotated[int, Ge(1), Le(2**20), Unit("tokens"), doc("tokens in a block of the router's own memory")]
MaxBlocks = Annotated[int, Ge(1), Le(10**9), Unit("blocks"), doc("blocks that the router remembers of each replica")]

CacheThreshold = Annotated[
    float, Ge(0), Le(1), doc("share of the prompt that a replica must know, so that the router prefers it")
]
AbsThreshold = Annotated[CountOrZero, Unit("requests"), doc("largest difference of loads that the router accepts")]
RelThreshold = Annotated[float, Ge(1), Le(1e9), doc("largest ratio of loads that the router accepts")]


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
        if self.knowledge == "exact":
            return self._by_caches(request, replicas)
        prompt = self._table.stretches(request)
        chosen = self._by_memory(prompt, request, replicas)
        self._table.add(prompt, chosen.index)
        return chosen

    def _by_memory(self, prompt: list[Stretch], request: ArrivingRequest, replicas: Replicas) -> ReplicaLoad:
        idlest = replicas.least(unfinished)
        if unequal(idlest, replicas, self.balance_abs_threshold, self.balance_rel_threshold):
            return idlest
        depth, numbers = self._table.longest(prompt)
        if depth * self.block_size <= self.cache_threshold * request.input_tokens:
            return idlest
        return min(replicas.named(numbers), key=unfinished, default=idlest)

    def _by_caches(self, request: ArrivingRequest, replicas: Replicas) -> ReplicaLoad:
        idlest = replicas.least(unfinished)
        if unequal(idlest, replicas, self.balance_abs_threshold, self.balance_rel_threshold):
            return idlest
        known = [(load.cached_tokens(request), -load.num_unfinished, -load.index) for load in replicas]
        tokens, _, number = max(known)
        return replicas.by_number[-number] if tokens > self.cache_threshold * request.input_tokens else idlest


def unequal(idlest: ReplicaLoad, replicas: Replicas, most_apart: int, most_ratio: float) -> bool:
    """True if the most unfinished requests are too many more than the fewest, by number and by ratio."""
    fewest, most = idlest.num_unfinished, replicas.least(busiest).num_unfinished
    return most - fewest > most_apart and most > most_ratio * fewest


def busiest(replica: ReplicaLoad) -> int:
    """The fewest unfinished requests, negated."""
    return -replica.num_unfinished


def check_lag(kv_event_lag_s: float, *, hears: bool) -> None:
    """Raise ValueError for a lag of events that the router does not hear."""
    if kv_event_lag_s and not hears:
        raise ValueError("kv_event_lag_s is of knowledge: exact")
