"""Looks up the queued requests of a replica in its prefix cache."""

from collections.abc import Mapping, Sequence

from simulator.memory.cache import Cache
from simulator.memory.page_keys import PageKeys, Symbols
from simulator.memory.radix_cache import RadixCache
from simulator.queues.ranked import Prefixes
from simulator.request import Request
from simulator.request_state import RequestState


class QueuePrefixes:
    """The functions of `Prefixes`; looking changes nothing."""

    def __init__(self, requests: Mapping[int, Request], cache: Cache) -> None:
        self._requests = requests
        self._cache = cache
        self._tree = cache if isinstance(cache, RadixCache) else None
        self._leading: dict[int, bytes] = {}
        self._symbols: Symbols = {}

    def functions(self) -> Prefixes:
        """For a queue."""
        return Prefixes(self.hit_tokens, self.leading, self.by_subtree)

    def hit_tokens(self, live: RequestState) -> int:
        """Leading tokens that are cached; in a radix tree, perhaps all."""
        request = self._requests[live.row]
        if self._tree is None:
            return self._cache.hits(request, live.num_tokens)[0] * live.clock.block_size
        return self._tree.find(request, live.num_tokens)[0] * self._tree.block_size

    def leading(self, live: RequestState, num_tokens: int) -> bytes | None:
        """The first tokens as numbers, which are equal where the tokens are."""
        if self._tree is None or live.num_tokens < num_tokens:
            return None
        found = self._leading.get(live.row)
        if found is None:
            keys = PageKeys(self._requests[live.row], 1, self._symbols)
            found = self._leading[live.row] = keys.first(num_tokens).tobytes()
        return found

    def by_subtree(self, waiting: Sequence[RequestState]) -> list[RequestState]:
        """Depth first through the radix tree."""
        assert self._tree is not None
        lengths = [(self._requests[live.row], live.num_tokens) for live in waiting]
        return [waiting[place] for place in self._tree.by_subtree(lengths)]
