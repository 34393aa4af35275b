"""Blocks that decoding fills and others may look for: they enter the prefix cache as somebody comes to look for them.

To enter each block as it is filled costs more than all else that a cached request costs. But a block's place in the
cache shows only where its content is looked up, entered by another request, or left behind. So a decoding request is
noted by its conversation, or else by the key of the block that it enters next. Who comes with that, or leaves, has all
that is filled by then entered first: blocks of equal content in the order in which they were filled.
"""

from collections.abc import Callable, Hashable, Iterable, Mapping

from simulator.memory.prefix_ledger import PrefixLedger
from simulator.request import Request
from simulator.request_state import DECODING, DecodeClock, RequestState

_Filler = tuple[RequestState, int, int]  # a request, the blocks of it that have entered, and those that are full
_NOW = -1


class LateFills:
    """The decoding requests of a replica whose answers others may find, by what others would come with."""

    __slots__ = ("_before", "_cache", "_clock", "_entered", "_requests", "_tick", "_unknown")

    def __init__(
        self,
        requests: Mapping[int, Request],
        clock: DecodeClock,
        cache: PrefixLedger,
        unknown: Callable[[RequestState], int],
    ) -> None:
        self._requests = requests
        self._clock = clock
        self._cache = cache
        self._unknown = unknown
        self._entered: dict[RequestState, int] = {}
        self._tick = _NOW
        self._before = 0
        cache.fill = self.fill

    def joined(self, live: RequestState) -> None:
        """A request decodes from the next step on; what is full of it has entered."""
        keys = self._cache.keys.of(self._requests[live.row])
        if keys.tells_answer:
            self._await(live, self._cache.entered(live.row))

    def decode(self, before: int) -> None:
        """The step being applied decodes the requests up to this place of the batch."""
        self._tick = self._clock.ticks
        self._before = before

    def decoders(self) -> list[RequestState]:
        """The requests noted that compute a token in a decode step."""
        return [live for live in self._entered if _decodes(live)]

    def settle(self) -> None:
        """Enter all that is full."""
        self.fill(list(self._cache.unfilled))

    def enter(self, live: RequestState, full_blocks: int) -> None:
        """So many blocks of a request that decodes on are full."""
        if live in self._entered:
            self._await(live, self._leave(live, full_blocks))
        else:
            self._cache.enter(self._requests[live.row], full_blocks)

    def left(self, live: RequestState, full_blocks: int) -> None:
        """A request leaves the batch with so many full blocks."""
        if live in self._entered:
            self._leave(live, full_blocks)
        else:
            self._cache.enter(self._requests[live.row], full_blocks)

    def fill(self, keys: Iterable[Hashable]) -> None:
        """Enter all that is full of the requests that are noted by one of these."""
        of_blocks: list[Hashable] = []
        for key in keys:
            if type(key) is str:
                self._fill_conversation(key, [])
            else:
                of_blocks.append(key)
        found = self._take_out(of_blocks)
        if found:
            self._enter_all(found)
            for live, entered, full in found:
                self._await(live, max(entered, full))

    def _fill_conversation(self, conversation: str, filled: list[tuple[RequestState, int]]) -> None:
        """Enter all that is full of the requests of a conversation, which stay noted; and what one that left filled."""
        members = self._cache.unfilled.pop(conversation, [])
        entered, requests, cache = self._entered, self._requests, self._cache
        for live in members:
            full = self._full(live)
            if full > entered[live]:
                entered[live] = full
                filled.append((live, full))
        if len(filled) > 1:
            filled.sort(key=self._since)
        for live, full in filled:
            cache.enter(requests[live.row], full)
        if members:
            cache.unfilled[conversation] = members

    def _leave(self, live: RequestState, full_blocks: int) -> int:
        """Enter this request's blocks and whatever was filled with the same content; returns how many have entered."""
        entered = self._entered.pop(live)
        key = self._key(live, entered)
        unfilled = self._cache.unfilled
        same = unfilled[key]
        same.remove(live)
        if not same:
            del unfilled[key]
        if type(key) is str:
            if full_blocks > entered:
                self._fill_conversation(key, [(live, full_blocks)])
            return max(entered, full_blocks)
        found = [(live, entered, full_blocks)]
        self._enter_all(found)
        for other, before, full in found[1:]:
            self._await(other, max(before, full))
        return max(entered, full_blocks)

    def _await(self, live: RequestState, entered: int) -> None:
        """Note a request of which so many blocks have entered."""
        keys = self._cache.keys.of(self._requests[live.row])
        if entered < keys.num_shared:
            self._entered[live] = entered
            self._cache.unfilled.setdefault(self._key(live, entered), []).append(live)

    def _key(self, live: RequestState, entered: int) -> Hashable:
        """What a request is noted by: its conversation, or the key of the block that enters next."""
        keys = self._cache.keys.of(self._requests[live.row])
        return keys.first(entered + 1)[entered] if keys.conversation is None else keys.conversation

    def _take_out(self, keys: Iterable[Hashable]) -> list[_Filler]:
        """Forget the requests that are noted by one of these; returns them."""
        unfilled = self._cache.unfilled
        found: list[_Filler] = []
        if unfilled.keys().isdisjoint(keys):
            return found
        for key in keys:
            for live in unfilled.pop(key, ()):
                found.append((live, self._entered.pop(live), self._full(live)))
        return found

    def _enter_all(self, found: list[_Filler]) -> None:
        """Enter the blocks of these requests, and of those, which are added, that filled blocks of the same content."""
        requests, cache = self._requests, self._cache
        for live, entered, full in found:  # which grows
            if full > entered and cache.unfilled:
                found += self._take_out(cache.keys.of(requests[live.row]).first(full)[entered:full])
        # Each fills a block every so many steps: who was first at one block was so at all of them.
        in_order = found if len(found) == 1 else sorted(found, key=self._since)
        for live, _, full in in_order:
            cache.enter(requests[live.row], full)

    def _full(self, live: RequestState) -> int:
        """Full blocks of a request, with what the step that is being applied fills."""
        known = live.base_computed - self._unknown(live)
        if live.status is DECODING and not live.paused:
            ticks = self._clock.ticks
            known += ticks - live.join_tick
            if live.place < self._before and self._tick == ticks:
                known += 1
        return known // self._cache.block_size

    def _since(self, filler: tuple[RequestState, int, int] | tuple[RequestState, int]) -> tuple[int, int]:
        """The tick of the decode clock at which a request's first token would have been known, and its place."""
        live = filler[0]
        return live.join_tick - (live.base_computed - self._unknown(live)), live.place


def _decodes(live: RequestState) -> bool:
    return live.status is DECODING and not live.paused
