"""Events of prefix caches: which blocks a replica stored and removed, as a router hears of them some time later.

Servers publish them (vLLM: `--kv-events-config`), and gateways keep an index of what each server holds: Dynamo's KV
router, LMCache's controller. A block counts as stored as it is scheduled, as in vLLM's block pool. Where a replica has
several copies of a block, the index counts them: the block is there until the last is removed. Pages of SGLang's tree
are stored as they enter it, after the step that computed them.
"""

from collections import deque
from collections.abc import Hashable, Iterator

from simulator.engine.clock import Clock
from simulator.engine.replica import Replica
from simulator.goes_with import CACHE_EVENTS, KV_GROUPS, between
from simulator.memory.page_keys import Pages, chained
from simulator.memory.prefix_cache import PrefixCache
from simulator.memory.prefix_ledger import PrefixLedger
from simulator.memory.radix_cache import RadixCache
from simulator.request import ArrivingRequest


class HeardCache:
    """What is known of one replica's prefix cache: all events of `lag_s` ago and before.

    `numbers` counts the events of all replicas, in their order.
    """

    def __init__(self, replica: Replica, clock: Clock, lag_s: float, numbers: Iterator[int]) -> None:
        self._state = replica.state
        self._clock = clock
        self._lag_s = lag_s
        self._numbers = numbers
        self._coming: deque[tuple[float, int, int, list[Hashable]]] = deque()
        self._copies: dict[Hashable, int] = {}
        self._since: dict[Hashable, int] = {}  # the number of the event that stored a block's first copy
        self._state.fills = None  # each block enters as it is filled, so that its event has its time
        cache = replica.state.cache
        if isinstance(cache, RadixCache):
            cache.tree.tell = self._tell_path
        elif isinstance(cache, (PrefixCache, PrefixLedger)):
            cache.tell = self._tell
            cache.keys.used = None  # no text is forgotten, and none gets another name than was told
        else:
            raise between(KV_GROUPS, CACHE_EVENTS).error(f"replica {replica.index}")
        self._cache = cache

    def _tell(self, keys: list[Hashable], more: int) -> None:
        """Now there is one copy `more` of each of these blocks: 1, or -1."""
        self._coming.append((self._clock.now, next(self._numbers), more, keys))

    def _tell_path(self, pages: Pages, start: int, more: int) -> None:
        self._tell(chained(pages)[start:], more)

    def _known(self, request: ArrivingRequest, blocks: int) -> list[Hashable]:
        """The keys of the first `blocks` blocks of a prompt that others may have; what is due has been heard."""
        copies, since, cache = self._copies, self._since, self._cache
        while self._coming and self._coming[0][0] <= self._clock.now - self._lag_s:
            _, number, more, keys = self._coming.popleft()
            for key in keys:
                copies[key] = copies.get(key, 0) + more
                if not copies[key]:
                    del copies[key], since[key]
                elif key not in since:
                    since[key] = number
        known = cache.names(request.prompt(), blocks)
        if request.row not in self._state.requests:
            cache.end(request.row)
        return known

    def cached_tokens(self, request: ArrivingRequest) -> int:
        """Leading tokens of the prompt that are known to be cached."""
        keys, size = self._cache.keys, self._cache.block_size
        known = self._known(request, (request.input_tokens - (1 if keys is None else keys.behind)) // size)
        found = next((place for place, key in enumerate(known) if key not in self._copies), len(known))
        return (found - 1 if found and keys is not None and keys.drops_hit_block else found) * size

    def stored(self, request: ArrivingRequest, chunk_tokens: int) -> list[int | None]:
        """For each full chunk of the prompt, the number of the event that stored its last block; None: it is not there.

        Chunks that no other request can have are left out. One that ends before the first block does is not there.
        """
        size = self._cache.block_size
        known = self._known(request, request.input_tokens // size)
        ends = range(chunk_tokens, request.input_tokens + 1, chunk_tokens)
        blocks = [end // size for end in ends if end // size <= len(known)]
        return [self._since.get(known[last - 1]) if last else None for last in blocks]
