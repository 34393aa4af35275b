"""KV memory beyond the device, as vLLM's OffloadingConnector keeps it: chunks of blocks on the host.

Rules and names are those of vllm/v1/kv_offload (0.33).
"""

import heapq
from collections import OrderedDict
from collections.abc import Collection, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Final, Literal, NamedTuple, Protocol

from annotated_types import Gt, Le, doc

from simulator.parameters import Count, CountOrZero, Seconds, check_parameters

EvictionPolicy = Literal["lru", "arc"]
TierType = Literal["fs", "obj"]


@dataclass(frozen=True, slots=True)
class FurtherTierConfig:
    """A tier below the host. ValueError, which begins with the parameter's name.

    Bytes follow each other at the bandwidth, in each direction; `latency_s` passes beside the bytes of others.
    """

    num_chunks: Annotated[Count | None, doc("chunks that it has room for; null: no bound")]
    bandwidth: Annotated[float, Gt(0), Le(1e15), doc("bytes a second of the replica, in each direction")]
    latency_s: Annotated[Seconds, doc("seconds of a copy beside its bytes")] = 0.0
    eviction_policy: Annotated[EvictionPolicy, doc("which chunk leaves a full tier")] = "lru"

    def __post_init__(self) -> None:
        check_parameters(self)


@dataclass(frozen=True, slots=True)
class OffloadConfig:
    """The host's tier of one replica, with vLLM's names. ValueError, which begins with the parameter's name.

    A copy takes `latency_s` and its bytes divided by the bandwidth; each direction of the link has its own queue.
    """

    num_chunks: Annotated[Count, doc("chunks that the host has room for")]
    block_bytes: Annotated[int, Gt(0), doc("bytes of a block, over all GPUs of the replica")]
    bandwidth: Annotated[float, Gt(0), Le(1e15), doc("bytes a second over all GPUs, in each direction")]
    latency_s: Annotated[Seconds, doc("seconds of a copy beside its bytes")] = 0.0
    eviction_policy: Annotated[EvictionPolicy, doc("which chunk leaves a full tier")] = "lru"
    blocks_per_chunk: Annotated[Count, doc("KV blocks of a chunk")] = 1
    offload_prompt_only: Annotated[bool, doc("store what prompts fill, and not what decoding fills")] = True
    store_threshold: Annotated[CountOrZero, doc("store a chunk when it is offered so often; 0 and 1: at once")] = 0
    sync_load_blocks: Annotated[CountOrZero, doc("blocks that a step loads while it waits; 0: none")] = 0
    tiers: tuple[FurtherTierConfig, ...] = ()

    def __post_init__(self) -> None:
        check_parameters(self)


@dataclass(slots=True)
class Access:
    """Chunks that a request has offered or loaded.

    `places` has the end of each in the request's tokens, and the number of its KV group. `inserted` were written for
    it, `reused` found by it, `missed` counted as not found. `rank` is that of `Lru`.
    """

    places: dict[Hashable, tuple[int, int]] = field(default_factory=dict)
    seen: dict[Hashable, None] = field(default_factory=dict)
    inserted: set[Hashable] = field(default_factory=set)
    reused: set[Hashable] = field(default_factory=set)
    missed: set[Hashable] = field(default_factory=set)
    rank: int = 0

    def in_order(self) -> list[Hashable]:
        """The chunks seen, from the head of the sequence to its tail."""
        return sorted(self.seen, key=self.places.__getitem__)


# The least recently used chunk leaves first, and of a sequence its tail (vllm/v1/kv_offload/cpu/policies/lru.py).

Rank = tuple[int, int, int]


class Lru:
    """Ranks of chunks, the smallest of which leaves first.

    The chunks of a running request share one rank, its later ones before its earlier; when it ends, they become the
    newest of all, the head of its sequence last.
    """

    def __init__(self, num_chunks: int) -> None:
        self._ranks: dict[Hashable, Rank] = {}
        self._idle: set[Hashable] = set()  # neither written nor read
        self._heap: list[tuple[Rank, Hashable]] = []  # of idle ones, and of outdated ranks
        self._last = 0

    def _next(self) -> int:
        self._last += 1
        return self._last

    def _rank(self, access: Access, key: Hashable) -> Rank:
        if not access.rank:
            access.rank = self._next()
        tokens, group = access.places[key]
        return access.rank, -tokens, group

    def insert(self, key: Hashable, access: Access) -> None:
        """A chunk is about to be written."""
        self._ranks[key] = self._rank(access, key)

    def accessed(self, keys: Sequence[Hashable], access: Access) -> None:
        """A request has offered or loaded these for the first time."""
        for key in keys:
            rank = self._rank(access, key)
            if key in self._ranks and self._ranks[key] < rank:
                self._renew(key, rank)

    def missed(self, keys: Sequence[Hashable]) -> None:
        """These are about to be inserted."""

    def ended(self, access: Access) -> None:
        """The request has ended."""
        for key in reversed(access.in_order()):
            if key in self._ranks:
                self._renew(key, (self._next(), 0, 0))

    def _renew(self, key: Hashable, rank: Rank) -> None:
        self._ranks[key] = rank
        if key in self._idle:
            heapq.heappush(self._heap, (rank, key))

    def release(self, key: Hashable) -> None:
        """Nothing writes or reads the chunk any more."""
        self._idle.add(key)
        heapq.heappush(self._heap, (self._ranks[key], key))
        if len(self._heap) > 2 * len(self._idle) + 64:
            self._heap = [(self._ranks[idle], idle) for idle in self._idle]
            heapq.heapify(self._heap)

    def pin(self, key: Hashable) -> None:
        """An idle chunk is read from now on."""
        self._idle.remove(key)

    def evict(self, num_chunks: int, kept: Iterable[Hashable]) -> list[Hashable] | None:
        """Take out so many idle chunks that are not to be `kept`; None, and nothing, where there are fewer."""
        kept = set(kept)
        found: list[tuple[Rank, Hashable]] = []
        passed: list[tuple[Rank, Hashable]] = []
        while self._heap and len(found) < num_chunks:
            entry = heapq.heappop(self._heap)
            rank, key = entry
            if key not in self._idle or self._ranks[key] != rank or (found and found[-1] == entry):
                continue
            (passed if key in kept else found).append(entry)
        enough = len(found) == num_chunks
        for entry in passed if enough else passed + found:
            heapq.heappush(self._heap, entry)
        if not enough:
            return None
        for _, key in found:
            self._idle.remove(key)
            del self._ranks[key]
        return [key for _, key in found]


# Adaptive replacement: chunks seen once and chunks seen again, each with a part of the tier that adapts.
#
# As in vllm/v1/kv_offload/cpu/policies/arc.py; the algorithm is that of Megiddo and Modha (FAST 2003).

Keys = OrderedDict[Hashable, None]


class Arc:
    """`once` and `again` hold the chunks, oldest first; the ghosts of each, the keys of what left it of late."""

    def __init__(self, num_chunks: int) -> None:
        self._num_chunks = num_chunks
        self._once: Keys = OrderedDict()
        self._again: Keys = OrderedDict()
        self._once_gone: Keys = OrderedDict()
        self._again_gone: Keys = OrderedDict()
        self._target = 0.0  # chunks that `once` should have
        self._idle: set[Hashable] = set()

    def insert(self, key: Hashable, access: Access) -> None:
        """A chunk is about to be written."""
        self._once[key] = None
        self._once_gone.pop(key, None)
        self._again_gone.pop(key, None)

    def accessed(self, keys: Sequence[Hashable], access: Access) -> None:
        """Nothing is learnt before the request ends."""

    def missed(self, keys: Sequence[Hashable]) -> None:
        """These are about to be inserted: a ghost among them moves the target towards the part that it left."""
        once, again = self._once_gone, self._again_gone
        for key in reversed(keys):
            if key in once:
                self._target = min(self._target + max(1, len(again) / len(once)), self._num_chunks)
                once.move_to_end(key)
            elif key in again:
                self._target = max(self._target - max(1, len(once) / len(again)), 0)
                again.move_to_end(key)

    def ended(self, access: Access) -> None:
        """The request has ended: what it found here, and had not written itself, counts as seen again."""
        for key in reversed(access.in_order()):
            part = self._once if key in self._once else self._again
            if key not in part:
                continue
            if key in access.reused:
                del part[key]
                self._again[key] = None
            elif key in access.inserted:
                part.move_to_end(key)

    def release(self, key: Hashable) -> None:
        """Nothing writes or reads the chunk any more."""
        self._idle.add(key)

    def pin(self, key: Hashable) -> None:
        """An idle chunk is read from now on."""
        self._idle.remove(key)

    def evict(self, num_chunks: int, kept: Iterable[Hashable]) -> list[Hashable] | None:
        """Take out so many idle chunks that are not to be `kept`; None, and nothing, where there are fewer."""
        idle, kept = self._idle, set(kept)
        once = (key for key in self._once if key in idle and key not in kept)
        again = (key for key in self._again if key in idle and key not in kept)
        found: list[tuple[Hashable, bool]] = []
        size = len(self._once)
        for _ in range(num_chunks):
            key = next(once, None) if size >= int(self._target) else None
            from_once = key is not None
            if key is None:
                key = next(again, None)
            if key is None:
                key, from_once = next(once, None), True
            if key is None:
                return None
            size -= from_once
            found.append((key, from_once))
        for key, from_once in found:
            self._idle.remove(key)
            if from_once:
                del self._once[key]
                self._once_gone[key] = None
            else:
                del self._again[key]
                self._again_gone[key] = None
        for ghosts in (self._once_gone, self._again_gone):
            while len(ghosts) > self._num_chunks:
                ghosts.popitem(last=False)
        return [key for key, _ in found]


# A tier of chunks, as vLLM's CPUOffloadingManager keeps it (vllm/v1/kv_offload/cpu/manager.py, 0.33).

_WRITTEN: Final = -1  # in place of a number of readers
_MOST_COUNTED: Final = 64_000  # chunks whose offers are counted (`max_tracker_size`)


class Eviction(Protocol):
    """Which chunks leave a full tier: `Lru` or `Arc`."""

    def insert(self, key: Hashable, access: Access) -> None: ...

    def accessed(self, keys: Sequence[Hashable], access: Access) -> None: ...

    def missed(self, keys: Sequence[Hashable]) -> None: ...

    def ended(self, access: Access) -> None: ...

    def release(self, key: Hashable) -> None: ...

    def pin(self, key: Hashable) -> None: ...

    def evict(self, num_chunks: int, kept: Iterable[Hashable]) -> list[Hashable] | None: ...


class Stored(NamedTuple):
    """The chunks of an offer that are to be written, in order, and how many others have left for them."""

    keys: Sequence[Hashable]
    evicted: int = 0


class HostTier:
    """Chunks by key. A chunk is written, then idle, or read by loads; only an idle one may leave."""

    def __init__(self, num_chunks: int, policy: EvictionPolicy, store_threshold: int = 0) -> None:
        self.num_chunks = num_chunks
        self.chunks: dict[Hashable, int] = {}  # the loads that read each; _WRITTEN while it is written
        self.num_idle = 0
        self._policy: Eviction = Lru(num_chunks) if policy == "lru" else Arc(num_chunks)
        self._threshold = store_threshold
        self._offers: OrderedDict[Hashable, int] = OrderedDict()

    def is_there(self, key: Hashable) -> bool | None:
        """True if the chunk can be read, None if it is still being written, False if it is not here."""
        readers = self.chunks.get(key)
        return False if readers is None else None if readers == _WRITTEN else True

    def load(self, keys: Collection[Hashable], access: Access) -> None:
        """A load begins to read these chunks, which are there."""
        self.pin(keys)
        self._saw(keys, access, keys)

    def pin(self, keys: Iterable[Hashable]) -> None:
        """Read these, which are there, for no request: it does not count as a use of them."""
        for key in keys:
            if not self.chunks[key]:
                self._policy.pin(key)
                self.num_idle -= 1
            self.chunks[key] += 1

    def loaded(self, keys: Iterable[Hashable]) -> None:
        """A load has read these."""
        for key in keys:
            self.chunks[key] -= 1
            if not self.chunks[key]:
                self._release(key)

    def store(self, keys: Sequence[Hashable], access: Access) -> Stored | None:
        """A request offers these chunks; None if there is no room for all of them that are new, and nothing is stored.

        New ones are stored from their `store_threshold`-th offer on.
        """
        if self._threshold > 1:
            self._count(keys)
        new = [key for key in keys if key not in self.chunks]
        found = [key for key in keys if self.is_there(key)]
        if self._threshold > 1:
            new = [key for key in new if self._offers.get(key, 0) >= self._threshold]
        missed = [key for key in new if key not in access.missed]
        if missed:
            self._policy.missed(missed)
            access.missed.update(missed)
        counted = {*new, *found}
        self._saw([key for key in keys if key in counted], access, found)
        if not new:
            return Stored(())
        evicted = 0
        lacking = len(new) + len(self.chunks) - self.num_chunks
        if lacking > 0:
            gone = None if lacking > self.num_idle else self._policy.evict(lacking, keys)
            if gone is None:
                return None
            evicted = len(gone)
            self.num_idle -= evicted
            for key in gone:
                del self.chunks[key]
        for key in new:
            self.chunks[key] = _WRITTEN
            self._policy.insert(key, access)
        access.inserted.update(new)
        return Stored(new, evicted)

    def stored(self, keys: Iterable[Hashable]) -> None:
        """These have been written."""
        for key in keys:
            self.chunks[key] = 0
            self._release(key)

    def ended(self, access: Access) -> None:
        """A request has ended, and offers no more."""
        self._policy.ended(access)

    def _release(self, key: Hashable) -> None:
        self.num_idle += 1
        self._policy.release(key)

    def _saw(self, keys: Iterable[Hashable], access: Access, reused: Iterable[Hashable]) -> None:
        """Note the chunks that a request has to do with, and those that it found."""
        new = [key for key in keys if key not in access.seen]
        if new:
            access.seen.update(dict.fromkeys(new))
            self._policy.accessed(new, access)
        access.reused.update([key for key in reused if key not in access.inserted])

    def _count(self, keys: Sequence[Hashable]) -> None:
        """Count an offer of each; of too many, the longest ago are forgotten, but none of this offer."""
        offers = self._offers
        counted = 0
        for key in keys:
            if key in offers:
                offers.move_to_end(key)
                offers[key] += 1
                counted += 1
        others = len(offers) - counted
        for key in keys:
            if key in offers:
                continue
            if len(offers) >= _MOST_COUNTED:
                if not others:
                    continue
                offers.popitem(last=False)
                others -= 1
            offers[key] = 1

    def check(self) -> None:
        """Raise AssertionError unless the tier holds no more than it has room for, and counts its idle chunks."""
        assert len(self.chunks) <= self.num_chunks, "more chunks than there is room for"
        assert self.num_idle == sum([not readers for readers in self.chunks.values()]), "idle chunks differ"


# Tiers below the host, and a host that asks them for the chunks it lacks (vllm/v1/kv_offload/tiering, 0.33).

_UNBOUNDED: Final = 2**53
_ABSENT: Final = -1


class FurtherTier(HostTier):
    """A tier whose copies follow each other, those in one direction after one another."""

    def __init__(self, config: FurtherTierConfig, chunk_bytes: int) -> None:
        super().__init__(_UNBOUNDED if config.num_chunks is None else config.num_chunks, config.eviction_policy)
        self._config = config
        self._chunk_bytes = chunk_bytes
        self._free_s = [0.0, 0.0]  # for a load, for a store

    def copy(self, num_chunks: int, now_s: float, *, is_store: bool) -> tuple[float, float]:
        """Begin a copy as soon as the bytes of those before it are through; returns when that is, and when it ends."""
        start_s = max(now_s, self._free_s[is_store])
        self._free_s[is_store] = start_s + num_chunks * self._chunk_bytes / self._config.bandwidth
        return start_s, self._free_s[is_store] + self._config.latency_s


@dataclass(slots=True)
class _Answer:
    """The tier that has a chunk, None while that is not known; and the rows of the requests that ask."""

    place: int | None = None
    rows: set[int] = field(default_factory=set)


class TieredHost(HostTier):
    """A host with `further` tiers. In a look-up a chunk that one of these has counts as being written here.

    Tiers answer with the next plan. An answer is kept as long as a request that asked for the chunk is there, so that
    what was absent stays absent for it. A chunk that the host has no room for is absent.
    """

    def __init__(self, num_chunks: int, policy: EvictionPolicy, further: Sequence[HostTier]) -> None:
        super().__init__(num_chunks, policy)
        self._further = further
        self._answers: dict[Hashable, _Answer] = {}
        self._asked: dict[Hashable, None] = {}  # since the last plan
        self._keys: dict[int, dict[Hashable, None]] = {}  # by row, what its request asked for
        self._wanted: dict[Hashable, int] = {}  # chunk -> the tier that it is to come from
        self._looks: dict[int, list[Hashable]] = {}  # by row, the chunks that are wanted, or there
        self._row: int | None = None  # of the request that looks
        self._num_found = 0  # idle chunks that it has found

    def begin_look(self, row: int) -> None:
        """The next questions are those of this request, from its first chunk on."""
        self._row, self._num_found = row, 0
        self._looks[row] = []

    def end_look(self) -> None:
        """The look-up is over: questions are about the host alone."""
        self._row = None

    def is_there(self, key: Hashable) -> bool | None:
        """See `HostTier.is_there`; in a look-up further tiers are asked too."""
        there = super().is_there(key)
        if self._row is None:
            return there
        if there is False:
            there = self._is_further(key, self._row)
        elif there:
            self._num_found += not self.chunks[key]
        if there is not False and (key in self.chunks or key in self._wanted):
            self._looks[self._row].append(key)
        return there

    def _is_further(self, key: Hashable, row: int) -> bool | None:
        if key in self._wanted:
            return None
        answer = self._answers.get(key)
        if answer is None:
            answer = self._answers[key] = _Answer()
            self._asked[key] = None
        answer.rows.add(row)
        self._keys.setdefault(row, {})[key] = None
        if answer.place is None:
            return None
        if answer.place == _ABSENT or not self._further[answer.place].is_there(key):
            return False
        taken = len(self.chunks) - self.num_idle + self._num_found + len(self._wanted)
        if taken >= self.num_chunks:
            return False
        self._wanted[key] = answer.place
        return None

    def take_wanted(self) -> dict[int, tuple[list[Hashable], dict[Hashable, int]]]:
        """By row, the chunks that its look-up found and wants, and the tiers of those wanted; nothing is wanted then.

        A chunk that several want is the first one's.
        """
        found: dict[int, tuple[list[Hashable], dict[Hashable, int]]] = {}
        for row, keys in self._looks.items():
            places = {key: self._wanted.pop(key) for key in keys if key in self._wanted}
            if places:
                found[row] = keys, places
        self._looks.clear()
        self._wanted.clear()
        return found

    def give_up(self, keys: Iterable[Hashable]) -> None:
        """These do not come: they are absent for those who asked."""
        for key in keys:
            self._answers[key].place = _ABSENT

    def answer(self) -> None:
        """The tiers answer what was asked since the last plan: the first that has the chunk is named."""
        for key in self._asked:
            if key in self._answers:
                has = (place for place, tier in enumerate(self._further) if tier.is_there(key))
                self._answers[key].place = next(has, _ABSENT)
        self._asked.clear()

    def forget(self, row: int) -> None:
        """The request has left: answers that it alone asked for are dropped."""
        for key in self._keys.pop(row, ()):
            answer = self._answers[key]
            answer.rows.discard(row)
            if not answer.rows:
                del self._answers[key]
