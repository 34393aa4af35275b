"""Decode-filled blocks enter the prefix cache lazily, when a request first looks for them.

Entering each block as it is filled would cost more than the rest of a cached request. A block's place in the cache
matters only when its content is looked up, entered by another request, or left behind. So each decoding request is
registered under the text that its next block lies in. When a request with that text arrives or leaves, all filled
blocks of the text are entered first: blocks of equal content in the order in which they were filled.
"""

import sys
from collections.abc import Callable, Mapping

from simulator.memory.free_runs import RequestBlocks
from simulator.memory.ledger import PrefixLedger
from simulator.request import Request
from simulator.request_state import DECODING, DecodeClock, RequestState

_NOW = -1


class _Filler:
    """A decoding request, and what of it has entered the cache; the next block lies in `text`, up to `stop`."""

    __slots__ = ("blocks", "full", "live", "request", "since", "stop", "text")

    def __init__(self, live: RequestState, request: Request, blocks: RequestBlocks) -> None:
        self.live = live
        self.request = request
        self.blocks = blocks
        self.text = self.stop = 0
        self.full = 0  # blocks, when it was last looked at
        self.since = 0, 0  # `LateFills._since`, when it was last looked at beside others


class LateFills:
    """The decoding requests of a replica whose answers others may find, by the texts that they go on with."""

    __slots__ = ("_before", "_cache", "_clock", "_fillers", "_requests", "_texts", "_tick", "_unknown")

    def __init__(
        self,
        requests: Mapping[int, Request],
        clock: DecodeClock,
        cache: PrefixLedger,
        unknown: Callable[[RequestState], int] | None,
    ) -> None:
        self._requests = requests
        self._clock = clock
        self._cache = cache
        self._unknown = unknown
        self._fillers: dict[RequestState, _Filler] = {}
        self._texts: dict[int, list[_Filler]] = {}
        self._tick = _NOW
        self._before = 0
        cache.unfilled, cache.fill = self._texts, self.fill

    def joined(self, live: RequestState) -> None:
        """A request decodes from the next step on; what is full of it has entered."""
        request = self._requests[live.row]
        if request.content is None:
            return
        blocks = self._cache.table(request)
        if blocks.shared > request.input_tokens // self._cache.block_size:  # of its answer too
            self._note(_Filler(live, request, blocks))

    def __len__(self) -> int:
        return len(self._fillers)

    def decode(self, before: int) -> None:
        """The step being applied decodes the requests up to this place of the batch."""
        self._tick = self._clock.ticks
        self._before = before

    def decoders(self, request: Request, place: int) -> list[RequestState]:
        """The requests noted that compute a token in a decode step, of those that may fill this place of a request."""
        texts = [text for text, start, _ in self._cache.keys.of(request).stretches() if start <= place]
        return [filler.live for text in texts for filler in self._texts.get(text, ()) if _decodes(filler.live)]

    def settle(self) -> None:
        """Enter all that is full."""
        for text in list(self._texts):
            if text in self._texts:
                self.fill(text, sys.maxsize)

    def enter(self, live: RequestState, full_blocks: int) -> None:
        """So many blocks of a request that decodes on are full."""
        filler = self.left(live, full_blocks)
        if filler is not None:
            self._note(filler)

    def fill(self, text: int, before: int) -> None:
        """Enter all that is full of the requests that are noted by a text and may have filled a place `before`."""
        for filler in self._texts[text]:
            if filler.blocks.entered < before and self._has_more(filler):
                self._enter_all(text, before, None)
                return

    def left(self, live: RequestState, full_blocks: int) -> _Filler | None:
        """A request leaves the batch with so many full blocks, which enter; returns what was noted of it."""
        filler = self._fillers.pop(live, None)
        if filler is None:
            self._cache.enter(self._requests[live.row], full_blocks)
            return None
        same = self._texts[filler.text]
        enters = full_blocks > filler.blocks.entered
        if enters and (len(same) > 1 or full_blocks > filler.stop):
            filler.full = full_blocks
            self._enter_all(filler.text, 0, filler)
            return filler
        same.remove(filler)
        if not same:
            del self._texts[filler.text]
        if enters:
            self._cache.enter(filler.request, full_blocks)
        return filler

    def _note(self, filler: _Filler) -> None:
        """Note a request by the text of its next block, if others may have that."""
        entered = filler.blocks.entered
        if entered >= filler.stop:
            stretches, at = filler.blocks.stretches, -1
            while stretches[at][1] > entered:
                at -= 1
            filler.text, _, filler.stop = stretches[at]
            if entered >= filler.stop:  # nobody else can have the next
                self._fillers.pop(filler.live, None)
                return
        self._fillers[filler.live] = filler
        same = self._texts.get(filler.text)
        if same is None:
            self._texts[filler.text] = [filler]
        else:
            same.append(filler)

    def _enter_all(self, text: int, before: int, leaving: _Filler | None) -> None:
        """Enter what is full of the requests of a text, up to the latest to come to it that has a place `before`.

        That is the one `leaving`, if one is. Each fills a block every so many steps: who was first at one block was so
        at all of them. If one has come to another text, where others may be, all are entered.
        """
        noted = self._texts.pop(text)
        found = [filler for filler in noted if filler is leaving or self._has_more(filler)]
        if len(found) > 1:
            for filler in found:
                filler.since = self._since(filler)
            found.sort(key=_came)
            while found[-1] is not leaving and (leaving is not None or found[-1].blocks.entered >= before):
                found.pop()
        moves = crosses = False
        for filler in found:
            if filler.full >= filler.stop:
                moves = True
                crosses = crosses or filler.full > filler.stop
        if crosses and self._texts:
            found = noted
            for filler in found:  # which grows
                if filler is not leaving:
                    self._has_more(filler)
                filler.since = self._since(filler)
                for other, start, _ in filler.blocks.stretches:
                    if filler.stop <= start < filler.full:
                        found += self._texts.pop(other, ())
            found = sorted(found, key=_came)
        for filler in found:
            if filler.full > filler.blocks.entered:
                self._cache.enter(filler.request, filler.full)
        if leaving is not None:
            noted.remove(leaving)
        if moves or text in self._texts:
            for filler in noted:
                self._note(filler)
        elif noted:
            self._texts[text] = noted

    def _has_more(self, filler: _Filler) -> bool:
        """Count the full blocks of a request, with what the step that is being applied fills: more than entered?"""
        live = filler.live
        known = live.base_computed
        if self._unknown is not None:
            known -= self._unknown(live)
        if live.status is DECODING and not live.paused:
            ticks = self._clock.ticks
            known += ticks - live.join_tick
            if live.place < self._before and self._tick == ticks:
                known += 1
        filler.full = full = known // self._cache.block_size
        return full > filler.blocks.entered

    def _since(self, filler: _Filler) -> tuple[int, int]:
        """The tick of the decode clock at which its first token would have been known, and its place in the batch."""
        live = filler.live
        unknown = 0 if self._unknown is None else self._unknown(live)
        return live.join_tick - live.base_computed + unknown, live.place


def _decodes(live: RequestState) -> bool:
    return live.status is DECODING and not live.paused


def _came(filler: _Filler) -> tuple[int, int]:
    return filler.since
