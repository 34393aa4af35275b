"""The least recently used chunk leaves first, and of a sequence its tail (vllm/v1/kv_offload/cpu/policies/lru.py)."""

import heapq
from collections.abc import Hashable, Iterable, Sequence

from simulator.memory.offload.access import Access

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
