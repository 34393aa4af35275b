"""NVIDIA Dynamo's KV router: the blocks to prefill plus the blocks in use, at the least.

The rule is that of ai-dynamo 1.6.1 (`KvRouterConfig` in dynamo/_core.pyi names the parameters; `worker_logit` in
lib/kv-router/src/scheduling/selector/default.rs, 07a6c9ce, has the sum). Recorded decisions of its `SelectionService`
are the test: the prompt tokens and blocks that it counts for each worker, and the worker that it takes. Of the workers
it knows what it has sent there itself: a request's prompt tokens that were not cached, from the choice to its first
token; its full blocks, to its end, where blocks of equal content count once. What a worker has cached it learns from
events (`knowledge: exact`, its default), at once or `kv_event_lag_s` late, as with its replay's kv_event_lag_ms; or it
takes what it sent in the last `ttl_s` seconds to be there (`approximate`, its --no-router-kv-events).

Beside its own replay (`python -m tests.bench.dynosim`; docs/benchmarks.md) ours, made to take its choices, has the same
costs at each of them, the same blocks cached and the same times to within a step; with an overlap_score_credit_decay of
2 too. Left alone, both break the ties of idle workers at random. Where all prompts begin alike, an idle replica without
that beginning costs its blocks more than an idle one that has it: it may get its first request only when the others are
busy, and at a low load none.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from math import exp
from typing import TYPE_CHECKING, Annotated, ClassVar

from annotated_types import Ge, Gt, Le, Unit, doc

from simulator.fleet.prompt_table import BlockSize, EventLag, Knowledge, PromptTable, Stretch, check_lag
from simulator.fleet.router import Drawing
from simulator.parameters import Factor, check_parameters

if TYPE_CHECKING:
    from simulator.engine.admission import ReplicaLoad
    from simulator.fleet.router import Replicas
    from simulator.request import ArrivingRequest


# What a router has sent to one replica and has not ended: requests, tokens to prefill, and different blocks in use.

_Part = tuple[int, int, int]  # blocks of a text from a place to before another, and how many requests use them


class Booked:
    """Requests that were sent to one replica: those that have not ended, and those without a first token.

    Blocks of equal content count once. They are kept as parts of texts, not one by one.
    """

    __slots__ = ("_parts", "num_blocks", "prefill_tokens", "requests")

    def __init__(self) -> None:
        self.requests = 0
        self.prefill_tokens = 0
        self.num_blocks = 0  # different ones in use
        self._parts: dict[Hashable, list[_Part]] = {}  # by text, in order and apart

    def with_blocks(self, prompt: Iterable[Stretch]) -> int:
        """Different blocks in use, with these."""
        blocks = self.num_blocks
        for text, start, stop in prompt:
            blocks += stop - start
            for first, end, _ in self._parts.get(text, ()):
                if first < stop and start < end:
                    blocks -= min(end, stop) - max(first, start)
        return blocks

    def add(self, prompt: Iterable[Stretch]) -> None:
        """A request with these blocks is sent there."""
        self.requests += 1
        for stretch in prompt:
            self._change(stretch, 1)

    def end(self, prompt: Iterable[Stretch]) -> None:
        """A request with these blocks, which was added, has ended."""
        self.requests -= 1
        for stretch in prompt:
            self._change(stretch, -1)

    def _change(self, stretch: Stretch, more: int) -> None:
        """So many `more` requests use these blocks: 1, or -1."""
        text, start, stop = stretch
        before = self._parts.pop(text, [])
        after: list[_Part] = []
        for first, end, uses in sorted(_changed(before, start, stop, more)):
            if after and after[-1][1:] == (first, uses):
                first = after.pop()[0]
            after.append((first, end, uses))
        if after:
            self._parts[text] = after
        self.num_blocks += _size(after) - _size(before)


def _size(parts: Iterable[_Part]) -> int:
    return sum([end - first for first, end, _ in parts])


def _changed(parts: Sequence[_Part], start: int, stop: int, more: int) -> Iterator[_Part]:
    """These parts, with so many more uses of the blocks from `start` to before `stop`; in no order."""
    place = start
    for first, end, uses in parts:
        low, high = max(first, start), min(end, stop)
        if low >= high:
            yield first, end, uses
            continue
        if first < low:
            yield first, low, uses
        if high < end:
            yield high, end, uses
        if uses + more:
            yield low, high, uses + more
        if place < low:
            yield place, low, more
        place = high
    if place < stop:
        yield place, stop, more


_ALL = 10**9  # no number of blocks is too many to remember for `ttl_s`


@dataclass(slots=True)
class DynamoKv(Drawing):
    """Give a request to the replica of least cost; of equals to one at random.

    cost = prefill_load_scale x max(0, prompt tokens to compute there, with this request's - credit x its tokens cached
    there) / block_size + the different blocks of unfinished requests there, with this one's +
    decode_active_request_weight x unfinished requests. The credit is overlap_score_credit / (1 +
    overlap_score_credit_decay x prompt tokens to compute there beyond the replica with the fewest / prompt). With a
    `temperature` above 0 a replica is drawn, with the weight exp(-cost / (largest - smallest cost) / temperature).
    """

    hears_ends: ClassVar = True
    hears_first_tokens: ClassVar = True

    knowledge: Knowledge = "exact"
    overlap_score_credit: Annotated[Factor, doc("weight of what is cached against what is to be computed")] = 1.0
    overlap_score_credit_decay: Annotated[
        Factor, doc("how fast that weight falls where more prompt tokens are to be computed than on other replicas")
    ] = 0.0
    prefill_load_scale: Annotated[Factor, doc("weight of blocks to prefill against blocks in use")] = 1.0
    decode_active_request_weight: Annotated[Factor, Unit("blocks"), doc("added for each unfinished request")] = 0.0
    temperature: Annotated[float, Ge(0), Le(1e6), doc("how far the choice is left to chance; 0: not at all")] = 0.0
    ttl_s: Annotated[
        float, Gt(0), Le(1e9), Unit("s"), doc("approximate: the router takes a block to be cached for so long")
    ] = 120.0
    block_size: BlockSize = 16
    kv_event_lag_s: EventLag = 0.0
    _table: PromptTable = field(init=False, repr=False)
    _booked: dict[int, Booked] = field(init=False, repr=False, default_factory=dict)
    _sent: dict[int, tuple[Booked, Sequence[Stretch], int]] = field(init=False, repr=False, default_factory=dict)

    def __post_init__(self) -> None:
        check_parameters(self)
        check_lag(self.kv_event_lag_s, hears=self.reads_caches)
        self._table = PromptTable(self.block_size, _ALL, in_use=self._in_use)

    @property
    def reads_caches(self) -> bool:
        """Only exact knowledge asks the caches."""
        return self.knowledge == "exact"

    def choose(self, request: ArrivingRequest, replicas: Replicas) -> ReplicaLoad:
        prompt = self._table.stretches(request)
        cached = self._cached(request, prompt, replicas)
        least = 0
        if self.overlap_score_credit_decay:
            least = min([self._of(load.index).prefill_tokens for load in replicas])
        costs = [self.cost(request, prompt, load.index, cached[load.index], least) for load in replicas]
        chosen = replicas[self._draw(costs)]
        self.book(request, prompt, chosen.index, cached[chosen.index])
        return chosen

    def _cached(self, request: ArrivingRequest, prompt: list[Stretch], replicas: Replicas) -> dict[int, int]:
        """The blocks of the prompt that each replica has cached, as far as the router knows."""
        if self.knowledge == "exact":
            return {load.index: load.cached_tokens(request) // self.block_size for load in replicas}
        self._table.forget(request.arrival_s - self.ttl_s)
        known = self._table.shares(prompt)
        return {load.index: known.get(load.index, 0) for load in replicas}

    def cost(
        self, request: ArrivingRequest, prompt: list[Stretch], number: int, cached_blocks: int, least_tokens: int = 0
    ) -> float:
        """What it costs to send a request with these blocks to a replica; `least_tokens` any has left to compute."""
        booked = self._of(number)
        credit = self.overlap_score_credit
        if self.overlap_score_credit_decay:
            blocks = max(1, -(-request.input_tokens // self.block_size))
            more = (booked.prefill_tokens - least_tokens) / self.block_size / blocks
            credit *= 1.0 / (1.0 + self.overlap_score_credit_decay * more)
        tokens = booked.prefill_tokens + request.input_tokens
        tokens_left = max(0.0, tokens - credit * cached_blocks * self.block_size)
        cost = self.prefill_load_scale * tokens_left / self.block_size + booked.with_blocks(prompt)
        return cost + self.decode_active_request_weight * booked.requests

    def _draw(self, costs: list[float]) -> int:
        """The place of the replica that is taken."""
        least, most = min(costs), max(costs)
        if not self.temperature or least == most:
            equals = [place for place, cost in enumerate(costs) if cost == least]
            return equals[self._draws.below(len(equals))] if len(equals) > 1 else equals[0]
        weights = [exp((least - cost) / (most - least) / self.temperature) for cost in costs]
        left = self._draws.uniform() * sum(weights)
        for place, weight in enumerate(weights):
            left -= weight
            if left < 0:
                return place
        return costs.index(least)

    def book(self, request: ArrivingRequest, prompt: list[Stretch], number: int, cached_blocks: int) -> None:
        """A request with these blocks goes to a replica."""
        booked = self._of(number)
        tokens = max(0, request.input_tokens - cached_blocks * self.block_size)
        booked.prefill_tokens += tokens
        booked.add(prompt)
        self._sent[request.row] = booked, prompt, tokens
        if self.knowledge == "approximate":
            self._table.add(prompt, number, request.arrival_s)

    def began(self, row: int) -> None:
        """A request has its first token."""
        if row in self._sent:
            booked, prompt, tokens = self._sent[row]
            booked.prefill_tokens -= tokens
            self._sent[row] = booked, prompt, 0

    def ended(self, row: int) -> None:
        """A request has ended, perhaps without a first token."""
        self.began(row)
        if row in self._sent:
            booked, prompt, _ = self._sent.pop(row)
            booked.end(prompt)

    def _in_use(self) -> Iterable[Stretch]:
        """The blocks of unfinished requests."""
        return (stretch for _, prompt, _ in self._sent.values() for stretch in prompt)

    def _of(self, number: int) -> Booked:
        """What was sent to a replica."""
        return self._booked.setdefault(number, Booked())
