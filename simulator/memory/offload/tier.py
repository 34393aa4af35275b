"""A tier of chunks, as vLLM's CPUOffloadingManager keeps it (vllm/v1/kv_offload/cpu/manager.py, 0.33)."""

from collections import OrderedDict
from collections.abc import Collection, Hashable, Iterable, Sequence
from typing import Final, NamedTuple, Protocol

from simulator.memory.offload import EvictionPolicy
from simulator.memory.offload.access import Access
from simulator.memory.offload.arc import Arc
from simulator.memory.offload.lru import Lru

_WRITTEN: Final = -1  # in place of a number of readers
_MOST_COUNTED: Final = 64_000  # chunks whose offers are counted (`max_tracker_size`)


class Eviction(Protocol):
    """Which chunks leave a full tier; see `simulator.memory.offload.lru`."""

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
