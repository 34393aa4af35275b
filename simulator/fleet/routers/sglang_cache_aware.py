"""SGLang's cache-aware router: the replica that first saw the prompt's longest known beginning, while loads are equal.

The rule is that of sglang-router 0.3.2 (`select_worker` in sgl-model-gateway/src/policies/cache_aware.rs, tree.rs),
whose recorded decisions are the test. Its tree is in characters of the prompt's text; here it is in blocks of tokens.
Of several replicas that know equally much it takes the one that sent that part first (`last_tenant` of the node where
the match ends). Every `eviction_interval_s` a replica that has more than `max_tree_size` in the tree loses what it used
longest ago, ends first (`evict_tenant_by_size`); a block that lost its first sender is its next one's.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field
from operator import itemgetter
from typing import TYPE_CHECKING, Annotated

from annotated_types import Ge, Gt, Le, Unit, doc

from simulator.fleet.prompt_table import CHARACTERS, BlockSize, PromptTable, Stretch
from simulator.fleet.router import AbsThreshold, CacheThreshold, RelThreshold, knowing_enough, unfinished
from simulator.parameters import check_parameters

if TYPE_CHECKING:
    from simulator.engine.admission import ReplicaLoad
    from simulator.fleet.router import Replicas
    from simulator.request import ArrivingRequest

_Part = tuple[int, int, int]  # blocks from a place to before another, and the replica that sent them first


class FirstSenders:
    """The replica that sent each block first, by text: those from a place to before another, in order."""

    def __init__(self) -> None:
        self._parts: dict[Hashable, list[_Part]] = {}

    def add(self, prompt: list[Stretch], number: int) -> None:
        """A replica sends these blocks, some of them perhaps first."""
        for text, place, stop in prompt:
            parts = self._parts.setdefault(text, [])
            new = []
            for first, end, _ in parts[bisect_right(parts, place, key=_END) :]:
                if place >= stop:
                    break
                if place < first:
                    new.append((place, min(first, stop), number))
                place = end
            if place < stop:
                new.append((place, stop, number))
            if new:
                parts += new
                parts.sort()

    def of(self, prompt: list[Stretch], block: int) -> int:
        """The first sender of a block of the prompt."""
        text, place = _place(prompt, block)
        parts = self._parts[text]
        return parts[bisect_right(parts, place, key=_END)][2]

    def replace(self, prompt: list[Stretch], block: int, number: int) -> None:
        """The first sender lost this block: it is another's."""
        text, place = _place(prompt, block)
        parts = self._parts[text]
        at = bisect_right(parts, place, key=_END)
        first, end, before = parts[at]
        split = [(first, place, before), (place, place + 1, number), (place + 1, end, before)]
        parts[at : at + 1] = [part for part in split if part[0] < part[1]]

    def keep(self, table: PromptTable) -> None:
        """Forget the blocks of which the table remembers no sender: the next one to send them is the first again."""
        kept = {text: list(_within(parts, table.spans(text))) for text, parts in self._parts.items()}
        self._parts = {text: parts for text, parts in kept.items() if parts}


_END = itemgetter(1)


def _within(parts: list[_Part], spans: list[tuple[int, int]]) -> Iterator[_Part]:
    """What lies within spans, both in order and apart."""
    for start, stop in spans:
        for first, end, number in parts[bisect_right(parts, start, key=_END) :]:
            if first >= stop:
                break
            yield max(first, start), min(end, stop), number


def _place(prompt: list[Stretch], block: int) -> tuple[Hashable, int]:
    """The text of a block of the prompt, and its place there."""
    for text, start, stop in prompt:
        if block < stop - start:
            return text, start + block
        block -= stop - start
    raise IndexError(block)


@dataclass(slots=True)
class SglangCacheAware:
    """Give a request to the replica that knows most of its prompt, if that is more than `cache_threshold` of it.

    Otherwise it goes to the replica with the fewest unfinished requests, the first of equals; so it does while the most
    and the fewest differ by more than `balance_abs_threshold` and by more than the factor `balance_rel_threshold`.
    """

    cache_threshold: CacheThreshold = 0.3
    balance_abs_threshold: AbsThreshold = 64
    balance_rel_threshold: RelThreshold = 1.5
    max_tree_size: Annotated[
        int, Ge(1), Le(2**40), Unit("characters"), doc("text of a replica in the tree after an eviction, at most")
    ] = 2**26
    eviction_interval_s: Annotated[float, Gt(0), Le(1e9), Unit("s"), doc("seconds between two evictions")] = 60.0
    block_size: BlockSize = 16
    _table: PromptTable = field(init=False, repr=False)
    _first: FirstSenders = field(init=False, repr=False, default_factory=FirstSenders)
    _evictions: int = field(init=False, repr=False, default=0)

    def __post_init__(self) -> None:
        check_parameters(self)
        self._table = PromptTable(self.block_size, max(1, self.max_tree_size // (CHARACTERS * self.block_size)))

    def choose(self, request: ArrivingRequest, replicas: Replicas) -> ReplicaLoad:
        if request.arrival_s >= (self._evictions + 1) * self.eviction_interval_s:
            self._evictions = int(request.arrival_s / self.eviction_interval_s)
            self._table.trim()
            self._first.keep(self._table)
        prompt = self._table.stretches(request)
        chosen = self._chosen(prompt, request, replicas)
        self._table.add(prompt, chosen.index, most=_ALL)
        self._first.add(prompt, chosen.index)
        return chosen

    def _chosen(self, prompt: list[Stretch], request: ArrivingRequest, replicas: Replicas) -> ReplicaLoad:
        tokens, numbers = knowing_enough(self, request, replicas, lambda: self._known(prompt, replicas))
        if not numbers:
            return replicas.least(unfinished)
        last = tokens // self.block_size - 1
        number = self._first.of(prompt, last)
        if number not in numbers:
            number = numbers[0]
            self._first.replace(prompt, last, number)
        return replicas.by_number[number]

    def _known(self, prompt: list[Stretch], replicas: Replicas) -> tuple[int, list[int]]:
        """The most tokens of the prompt that are known, and where."""
        depth, numbers = self._table.longest(prompt, replicas.bits)
        return depth * self.block_size, numbers


_ALL = 10**12  # nothing is forgotten between two evictions
