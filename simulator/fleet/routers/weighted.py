"""A weighted sum of scores: load, queue and use of KV against a known prefix and a known session.

The endpoint picker of llm-d and of the Gateway API Inference Extension adds up scorers in this way (queue, KV-cache
utilization and prefix-cache scorers, weights 2, 2 and 3 in its default profile); NVIDIA Dynamo's KV router minimises
the blocks to prefill, weighted, plus the blocks in use. Here loads and queues are shares of a replica's slots, so that
replicas of unlike size compare; llm-d scales them by the smallest and the largest queue of the moment instead.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated

from annotated_types import doc

from simulator.fleet.prompt_table import BlockSize, EventLag, Knowledge, MaxBlocks, PromptTable, Stretch, check_lag
from simulator.parameters import Factor, check_parameters

if TYPE_CHECKING:
    from simulator.engine.admission import ReplicaLoad
    from simulator.fleet.router import Replicas
    from simulator.request import ArrivingRequest

MOST_SESSIONS = 100_000


@dataclass(slots=True)
class Weighted:
    """Give a request to the replica of least cost, the first of equals.

    cost = load x unfinished / slots + queue x waiting / slots + kv x used / usable blocks - prefix x known share of the
    prompt - session x (1 where the last request of the session went). The 100,000 sessions used last are remembered.
    """

    load: Annotated[Factor, doc("weight of unfinished requests / slots")] = 1.0
    queue: Annotated[Factor, doc("weight of waiting requests / slots")] = 0.0
    kv: Annotated[Factor, doc("weight of used / usable KV blocks")] = 1.0
    prefix: Annotated[Factor, doc("weight of the share of the prompt that the replica knows")] = 1.0
    session: Annotated[Factor, doc("weight of having served the session's last request")] = 0.0
    knowledge: Knowledge = "approximate"
    block_size: BlockSize = 16
    max_blocks: MaxBlocks = 1_000_000
    kv_event_lag_s: EventLag = 0.0
    _table: PromptTable = field(init=False, repr=False)
    _sessions: dict[str, int] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        check_parameters(self)
        if not (self.load or self.queue or self.kv or self.prefix or self.session):
            raise ValueError("load and all other weights are 0: at least one must be above")
        check_lag(self.kv_event_lag_s, hears=self.reads_caches)
        self._table = PromptTable(self.block_size, self.max_blocks)

    @property
    def reads_caches(self) -> bool:
        """Only exact knowledge that counts asks the caches."""
        return self.prefix > 0 and self.knowledge == "exact"

    def choose(self, request: ArrivingRequest, replicas: Replicas) -> ReplicaLoad:
        prompt = self._table.stretches(request) if self.prefix and not self.reads_caches else []
        chosen = self._least(self._gains(request, prompt, replicas), replicas)
        if prompt:
            self._table.add(prompt, chosen.index)
        if self.session and request.session_id is not None:
            self._sessions.pop(request.session_id, None)
            self._sessions[request.session_id] = chosen.index
            if len(self._sessions) > MOST_SESSIONS:
                del self._sessions[next(iter(self._sessions))]
        return chosen

    def _gains(self, request: ArrivingRequest, prompt: list[Stretch], replicas: Replicas) -> dict[int, float]:
        """The reduction of a replica's cost for this request, by number; replicas that know nothing are left out."""
        gains: dict[int, float] = {}
        if self.reads_caches:
            tokens = {load.index: load.cached_tokens(request) for load in replicas}
        else:
            tokens = {number: blocks * self.block_size for number, blocks in self._table.shares(prompt).items()}
        for number, known in tokens.items():
            if known and number in replicas.by_number:
                gains[number] = self.prefix * known / request.input_tokens
        last = self._sessions.get(request.session_id) if request.session_id is not None else None
        if last is not None and last in replicas.by_number:
            gains[last] = gains.get(last, 0.0) + self.session
        return gains

    def _least(self, gains: dict[int, float], replicas: Replicas) -> ReplicaLoad:
        """The replica of least cost. The index knows the least of those that gain nothing; the others are looked at."""
        found = replicas.least(self._cost)
        least = (self._cost(found) - gains.get(found.index, 0.0), found.index)
        for number, gain in gains.items():
            least = min(least, (self._cost(replicas.by_number[number]) - gain, number))
        return replicas.by_number[least[1]]

    def _cost(self, replica: ReplicaLoad) -> float:
        """The part of the cost that does not depend on the request."""
        slots = replica.max_num_seqs
        cost = self.load * replica.num_unfinished / slots
        if self.queue:
            cost += self.queue * replica.num_waiting / slots
        if self.kv:
            cost += self.kv * replica.kv_utilization
        return cost
