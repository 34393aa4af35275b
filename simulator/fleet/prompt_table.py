"""A router's memory of the prompts that it sent to each replica: its estimate of what they have cached.

Routers in production keep such an estimate rather than ask: SGLang's router a tree of the prompts of all workers
(sgl-router, `cache_aware`), the endpoint picker of llm-d and of the Gateway API Inference Extension a table of block
hashes with, for each server, the blocks used last (`prefix-cache-scorer`, `lruCapacityPerServer`). Here it is the
latter, in blocks of tokens, with one entry for the blocks of a text that a replica was last sent together.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Final, Literal, NamedTuple

from annotated_types import Ge, Le, Unit, doc

from simulator.fleet.router import Drawing
from simulator.memory.block_keys import BlockKeys, Chains
from simulator.parameters import check_parameters
from simulator.request import ArrivingRequest

if TYPE_CHECKING:
    from simulator.engine.admission import ReplicaLoad
    from simulator.fleet.router import Replicas

_TEXTS: Final = 1000  # so many are kept in any case
_GROWTH: Final = 2  # and so many times as many as were kept the last time


class Stretch(NamedTuple):
    """Blocks of one text, from the place `start` to before `stop`: equal ones have equal content, all before included.

    The stretches of a prompt follow one another.
    """

    text: Hashable
    start: int
    stop: int


class _Run:
    """Blocks of a text that a replica was last sent together, in the order in which they are forgotten."""

    __slots__ = ("beside", "newer", "number", "older", "start", "stop", "text", "time_s")

    def __init__(self, number: int, stretch: Stretch, time_s: float, beside: _Run | None) -> None:
        self.number = number
        self.text, self.start, self.stop = stretch
        self.time_s = time_s
        self.beside = beside  # another run of the same text
        self.older = self.newer = self

    def put_before(self, newer: _Run) -> None:
        """Let this run be forgotten before another."""
        self.older, self.newer = newer.older, newer
        self.older.newer = newer.older = self


class PromptTable:
    """Blocks of prompts by replica: of each the `most` used last.

    The last block of a prompt counts as used before its first, so that what is kept of a prompt is its beginning; the
    other way round with `keeps_ends`. Texts of which nothing is remembered are forgotten, but for those of `in_use`,
    which the table's owner keeps.
    """

    def __init__(
        self,
        block_size: int,
        most: int,
        *,
        keeps_ends: bool = False,
        in_use: Callable[[], Iterable[Stretch]] = tuple,
    ) -> None:
        self._size = block_size
        self._most = most
        self._keeps_ends = keeps_ends
        self._runs: dict[Hashable, _Run] = {}  # by text
        self._ends: dict[int, _Run] = {}  # by replica: behind its newest run and before its oldest
        self._sizes: dict[int, int] = {}
        self._chains = Chains(_TEXTS, _GROWTH)
        self._in_use = in_use

    def stretches(self, request: ArrivingRequest, most: int | None = None) -> list[Stretch]:
        """A prompt's full blocks, the first `most` of them.

        They are good until the next prompt is asked for, and as long as they are remembered or in use.
        """
        self._chains.tidy(self._used)
        blocks = request.input_tokens // self._size
        if most is not None and most < blocks:
            blocks = most
        keys = BlockKeys(request.prompt(), self._size, self._chains)
        found = []
        for text, start, stop in keys.stretches():
            if start < blocks:
                found.append(Stretch(text, start, min(stop, blocks)))
        if keys.num_shared < blocks:
            found.append(Stretch((request.row,), keys.num_shared, blocks))
        return found

    def _used(self) -> list[int]:
        """The last key of each text that is remembered or in use."""
        kept = [(text, run.stop) for text in self._runs for run in self._of(text)]
        kept += [(text, stop) for text, _, stop in self._in_use()]
        return [text + stop - 1 for text, stop in kept if isinstance(text, int)]  # not a prompt's own

    def longest(self, prompt: list[Stretch], among: int = -1) -> tuple[int, list[int]]:
        """The longest prefix in blocks that a replica has been sent, and the numbers of these replicas, rising.

        Only replicas count whose bits are set in `among`.
        """
        found = depth = 0
        for here, blocks in self._holders(prompt):
            if not here & among:
                break
            found, depth = here & among, depth + blocks
        return depth, _numbers(found)

    def shares(self, prompt: list[Stretch]) -> dict[int, int]:
        """For each replica that has been sent a first part of these blocks, how many."""
        found: dict[int, int] = {}
        before = depth = 0
        for here, blocks in self._holders(prompt):
            for number in _numbers(before & ~here):
                found[number] = depth
            before = here
            depth += blocks
        for number in _numbers(before):
            found[number] = depth
        return found

    def held(self, prompt: list[Stretch]) -> dict[int, int]:
        """For each replica, how many of these blocks it was sent, up to the first that none was sent."""
        found: dict[int, int] = {}
        for here, blocks in self._holders(prompt):
            for number in _numbers(here):
                found[number] = found.get(number, 0) + blocks
        return found

    def _holders(self, prompt: list[Stretch]) -> Iterator[tuple[int, int]]:
        """The replicas that were sent the next blocks, a bit each, and how many; up to the first that none was sent."""
        for text, place, stop in prompt:
            while place < stop:
                bits, end = 0, stop
                for run in self._of(text):
                    if run.start <= place < run.stop:
                        bits |= 1 << run.number
                        end = min(end, run.stop)
                    elif place < run.start:
                        end = min(end, run.start)
                if not bits:
                    return
                yield bits, end - place
                place = end

    def _of(self, text: Hashable) -> Iterator[_Run]:
        run = self._runs.get(text)
        while run is not None:
            yield run
            run = run.beside

    def spans(self, text: Hashable) -> list[tuple[int, int]]:
        """The blocks of a text that are remembered of any replica: from each place to before another, in order."""
        found: list[tuple[int, int]] = []
        for start, stop in sorted([(run.start, run.stop) for run in self._of(text)]):
            if found and start <= found[-1][1]:
                start, last = found.pop()
                stop = max(stop, last)
            found.append((start, stop))
        return found

    def size(self, number: int) -> int:
        """Blocks remembered of a replica."""
        return self._sizes.get(number, 0)

    def add(self, prompt: list[Stretch], number: int, now_s: float = 0.0, most: int | None = None) -> None:
        """These blocks were sent to a replica now; beyond `most`, its block used longest ago is forgotten."""
        ends = self._ends.get(number)
        if ends is None:
            ends = self._ends[number] = _Run(number, Stretch(None, 0, 0), 0.0, None)
        for stretch in prompt if self._keeps_ends else reversed(prompt):
            for run in list(self._of(stretch.text)):
                if run.number == number and run.start < stretch.stop and stretch.start < run.stop:
                    self._cut_out(run, stretch)
            self._insert(number, stretch, now_s, ends)
        self._shorten(number, self._most if most is None else most)

    def _insert(self, number: int, stretch: Stretch, time_s: float, newer: _Run) -> None:
        run = self._runs[stretch.text] = _Run(number, stretch, time_s, self._runs.get(stretch.text))
        run.put_before(newer)
        self._sizes[number] = self.size(number) + run.stop - run.start

    def _cut_out(self, run: _Run, stretch: Stretch) -> None:
        """Take these blocks from a run."""
        left, right = Stretch(run.text, run.start, stretch.start), Stretch(run.text, stretch.stop, run.stop)
        for part in (left, right) if self._keeps_ends else (right, left):
            if part.start < part.stop:
                self._insert(run.number, part, run.time_s, run)
        self._remove(run)

    def _remove(self, run: _Run) -> None:
        self._sizes[run.number] -= run.stop - run.start
        run.older.newer, run.newer.older = run.newer, run.older
        before = None
        for other in self._of(run.text):
            if other is run:
                break
            before = other
        if before is not None:
            before.beside = run.beside
        elif run.beside is not None:
            self._runs[run.text] = run.beside
        else:
            del self._runs[run.text]

    def trim(self) -> None:
        """Forget of each replica what it has more than `most`."""
        for number in self._ends:
            self._shorten(number, self._most)

    def _shorten(self, number: int, most: int) -> None:
        while self.size(number) > most:
            run, gone = self._ends[number].newer, self._sizes[number] - most
            if gone >= run.stop - run.start:
                self._remove(run)
                continue
            self._sizes[number] = most
            if self._keeps_ends:
                run.start += gone
            else:
                run.stop -= gone

    def forget(self, before_s: float) -> None:
        """Forget the blocks used last before this time."""
        for ends in self._ends.values():
            while ends.newer is not ends and ends.newer.time_s < before_s:
                self._remove(ends.newer)


def _numbers(bits: int) -> list[int]:
    """The places of the bits that are set, rising."""
    found = []
    while bits:
        lowest = bits & -bits
        found.append(lowest.bit_length() - 1)
        bits ^= lowest
    return found


# What routers that remember prompts, or know of prefix caches, have in common: parameters, and a way to choose.

CHARACTERS = 4  # of a token, about: some gateways count a prompt's text

Knowledge = Annotated[
    Literal["approximate", "exact"],
    doc("approximate: the router remembers what it sent where; exact: it knows what each prefix cache holds"),
]
EventLag = Annotated[
    float, Ge(0), Le(1e9), Unit("s"), doc("exact: the router knows what the caches held so many seconds ago")
]
BlockSize = Annotated[int, Ge(1), Le(2**20), Unit("tokens"), doc("tokens in a block of the router's own memory")]
MaxBlocks = Annotated[int, Ge(1), Le(10**9), Unit("blocks"), doc("blocks that the router remembers of each replica")]


def check_lag(kv_event_lag_s: float, *, hears: bool) -> None:
    """Raise ValueError for a lag of events that the router does not hear."""
    if kv_event_lag_s and not hears:
        raise ValueError("kv_event_lag_s is of knowledge: exact")


@dataclass(slots=True)
class Remembering(Drawing):
    """A router that remembers what it sent where, and draws where that does not decide."""

    block_size: BlockSize = 16
    max_blocks: MaxBlocks = 1_000_000
    _table: PromptTable = field(init=False, repr=False)

    def __post_init__(self) -> None:
        check_parameters(self)
        self._table = PromptTable(self.block_size, self.max_blocks)
        self._prepare()

    def _prepare(self) -> None:
        """Make what else a router remembers, once its parameters have been checked."""

    def choose(self, request: ArrivingRequest, replicas: Replicas) -> ReplicaLoad:
        prompt = self._table.stretches(request)
        chosen = self._chosen(request, prompt, replicas)
        self._table.add(prompt, chosen.index)
        return chosen

    def _chosen(self, request: ArrivingRequest, prompt: list[Stretch], replicas: Replicas) -> ReplicaLoad:
        """One of `replicas` for a request with these blocks."""
        raise NotImplementedError
