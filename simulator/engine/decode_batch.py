"""The decoding requests of a replica, kept as sums so that a decode step costs the same for one as for a thousand.

The clock's `ticks` count decode steps. A request that joined at tick j with c computed tokens has c + ticks - j now,
finishes at tick j + (tokens still to come), and needs a new block at every tick t with (c + t - j) % block_size == 0.
So the requests are counted by (j - c) % block_size, which gives the blocks that any number of steps will take.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heappop, heappush
from itertools import accumulate
from math import nan
from typing import TYPE_CHECKING, Final

from simulator.request_state import DECODING, DecodeClock, RequestState

if TYPE_CHECKING:
    from simulator.queues.order import Meter


# Statistics of the decode contexts, kept as sums so that a decode step touches no request.
# A request's `offset` is its computed tokens less the clock's ticks: it does not change while the request decodes.


class ContextStats:
    """Maximum and sum of squares of the decode contexts. Adding and removing take O(log n)."""

    __slots__ = ("_count", "_heap", "_size", "_squares", "_sum")

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Remove every request."""
        self._size = self._sum = self._squares = 0
        self._count: dict[int, int] = {}  # requests by offset
        self._heap: list[int] = []  # offsets, negated; one that no request has any more goes when it comes up

    def add(self, offset: int) -> None:
        """A request joins."""
        self._size += 1
        self._sum += offset
        self._squares += offset * offset
        count = self._count
        if offset in count:
            count[offset] += 1
        else:
            count[offset] = 1
            heappush(self._heap, -offset)

    def remove(self, offset: int) -> None:
        """A request leaves."""
        self._size -= 1
        self._sum -= offset
        self._squares -= offset * offset
        left = self._count[offset] - 1
        if left:
            self._count[offset] = left
        else:
            del self._count[offset]

    def at(self, ticks: int) -> tuple[int, int]:
        """The longest context and the sum of squares at so many ticks; zeros for an empty batch."""
        if not self._size:
            return 0, 0
        heap, count = self._heap, self._count
        while -heap[0] not in count:
            heappop(heap)
        return ticks - heap[0], self._squares + ticks * (2 * self._sum + ticks * self._size)


# The decoding requests of a replica, kept as sums so that a decode step costs the same for one as for a thousand.
# The clock's `ticks` count decode steps. A request that joined at tick j with c computed tokens has c + ticks - j
# now, finishes at tick j + (tokens still to come), and needs a new block at every tick t with (c + t - j) %
# block_size == 0. So the requests are counted by (j - c) % block_size, which gives the blocks that any number of
# steps will take.

_NONE: Final[list[RequestState]] = []
_ENTRY_BITS: Final = 32
_ENTRIES: Final = (1 << _ENTRY_BITS) - 1


class DecodeBatch:
    """Requests that decode together, and the gaps between their tokens."""

    __slots__ = (
        "_due", "_entries", "_finishing", "_fresh", "_last_end_s", "_overrun", "_phases", "block_size", "clock",
        "context", "context_stats", "held", "members", "meter", "size",
    )  # fmt: skip

    def __init__(self, block_size: int) -> None:
        self.clock = DecodeClock(block_size)
        self.block_size = block_size
        self.size = 0  # requests that compute a token in a decode step, finished ones included
        self.held = 0  # of these, finished: kept until the batch has, or until their last token is known
        self.context = 0  # KV tokens of all of them
        # Requests by the phase at which they need a block. Twice over, so that any cycle of ticks is a slice.
        self._phases = [0] * (2 * block_size)
        self.members: list[dict[RequestState, None]] | None = None  # by that phase, where it matters who takes a block
        # Requests by finishing tick and entry, in one number, which a heap puts in order; stale where the request's
        # `entry` is another. They are kept here and not by the requests: a policy that could read the tick would know
        # the length of an answer.
        self._due: dict[int, RequestState] = {}
        self._finishing: list[int] = []
        self._entries = 0
        self._overrun: set[RequestState] = set()  # finished, and decoding on until their last token is known
        self._last_end_s = nan  # of the last decode step
        self.meter: Meter | None = None  # for a queue that depends on the tokens served
        self.context_stats: ContextStats | None = None  # for an executor that wants them
        self._fresh: dict[float, int] = {}  # requests that have not decoded since they joined, by last token's time

    # Joining and leaving

    def join(self, live: RequestState, tokens_left: int) -> None:
        """`live` has sampled a token and decodes from the next step on; `tokens_left` of its answer are to come."""
        computed = live.base_computed
        live.status = DECODING
        live.paused = False
        ticks = self.clock.ticks
        live.join_tick = ticks
        self.size += 1
        self.context += computed
        phase = (ticks - computed) % self.block_size
        if live.reserved_tokens == 0:
            self._phases[phase] += 1
            self._phases[phase + self.block_size] += 1
        if self.members is not None:
            self.members[phase][live] = None
        if self.context_stats is not None:
            self.context_stats.add(computed - ticks)
        entry = live.entry = self._entries = self._entries + 1
        key = (ticks + tokens_left << _ENTRY_BITS) + entry
        self._due[key] = live
        heappush(self._finishing, key)
        fresh = self._fresh
        fresh[live.last_token_s] = fresh.get(live.last_token_s, 0) + 1
        if self.meter is not None:
            self.meter.joined(live)

    def leave(self, live: RequestState) -> None:
        """`live` stops decoding; its counts and the time of its last token are settled."""
        ticks = self.clock.ticks
        ticked = ticks - live.join_tick
        overrun = live in self._overrun
        if overrun:
            self._overrun.remove(live)
            self.held -= 1
        elif ticked:
            live.before_s = live.last_token_s if ticked == 1 else nan
            live.last_token_s = self._last_end_s
        else:
            self._unfresh(live.last_token_s)
        computed = live.base_computed + ticked
        self.size -= 1
        self.context -= computed
        phase = (ticks - computed) % self.block_size
        if live.reserved_tokens == 0:
            self._phases[phase] -= 1
            self._phases[phase + self.block_size] -= 1
        if self.members is not None:
            del self.members[phase][live]
        if self.context_stats is not None:
            self.context_stats.remove(computed - ticks)
        live.base_computed = computed
        live.join_tick = ticks
        live.entry = 0
        if overrun:
            return
        live.base_outputs += ticked
        if self.meter is not None:
            self.meter.left(live)

    def overrun(self, live: RequestState) -> None:
        """`live` has its last token, and decodes on until that is known; `leave` then takes it out."""
        if live.status is DECODING:
            ticks = self.clock.ticks
            ticked = ticks - live.join_tick
            live.base_computed += ticked
            live.base_outputs += ticked
            live.join_tick = ticks
            live.before_s = live.last_token_s if ticked == 1 else nan
            live.last_token_s = self._last_end_s
        else:
            self.join(live, 0)
            live.entry = 0
            self._unfresh(live.last_token_s)
        self._overrun.add(live)
        self.held += 1
        if self.meter is not None:
            self.meter.left(live)

    def hold(self, live: RequestState) -> None:
        """`live` has just finished by decoding and computes padding in its slot from now on."""
        ticked = self.clock.ticks - live.join_tick
        live.base_computed += ticked
        live.base_outputs += ticked
        self.held += 1
        if self.meter is not None:
            self.meter.left(live)

    def pad(self, live: RequestState) -> None:
        """`live` has been aborted and computes padding in its slot from now on."""
        if self.clock.ticks == live.join_tick:
            self._unfresh(live.last_token_s)
        live.entry = 0
        self.hold(live)

    def join_held(self, live: RequestState) -> None:
        """`live` has finished in its prefill and keeps its slot."""
        self.size += 1
        self.held += 1
        self.context += live.num_computed_tokens
        if self.context_stats is not None:
            self.context_stats.add(live.num_computed_tokens - self.clock.ticks)

    def release_held(self) -> None:
        """Every request of the batch has finished: all slots come free."""
        self.size = 0
        self.held = 0
        self.context = 0
        if self.members is not None:
            self.keep_members()
        if self.context_stats is not None:
            self.context_stats.clear()

    def _unfresh(self, last_token_s: float) -> None:
        left = self._fresh[last_token_s] - 1
        if left:
            self._fresh[last_token_s] = left
        else:
            del self._fresh[last_token_s]

    def is_overrun(self, live: RequestState) -> bool:
        """True if the request has its last token and keeps decoding until this is known."""
        return live in self._overrun

    @property
    def last_end_s(self) -> float:
        """The end of the last decode step."""
        return self._last_end_s

    def keep_members(self) -> None:
        """From now on know the requests by their phase; the batch is empty."""
        self.members = [{} for _ in range(self.block_size)]

    # Looking ahead

    def next_context_stats(self) -> tuple[int, int]:
        """The longest context after the next decode step and the sum of squares; zeros unless they are kept."""
        return (0, 0) if self.context_stats is None else self.context_stats.at(self.clock.ticks + 1)

    def steps_to_finish(self) -> int:
        """Decode steps until a request finishes."""
        finishing, due = self._finishing, self._due
        while due[finishing[0]].entry != finishing[0] & _ENTRIES:
            del due[heappop(finishing)]
        return (finishing[0] >> _ENTRY_BITS) - self.clock.ticks

    def blocks_needed(self) -> int:
        """Blocks that the next decode step takes."""
        return self._phases[self.clock.ticks % self.block_size]

    def at_block_ends(self, first: int, stop: int) -> list[RequestState]:
        """Requests whose last block is full when some decode step from `first` to before `stop` begins; 0 is the next.

        Their number does not grow with the batch, but with the blocks that it fills.
        """
        assert self.members is not None
        size, ticks = self.block_size, self.clock.ticks
        phases = [(ticks + step) % size for step in range(first, min(stop, first + size))]
        return [live for phase in phases for live in self.members[phase] if live.status is DECODING]

    def steps_that_fit(self, num_free_blocks: int, limit: int) -> int:
        """How many successive decode steps, at most `limit`, find the blocks they need.

        `num_free_blocks` are free when the first step has taken its own.
        """
        size = self.block_size
        cycles_asked = -(-limit // size)
        if self.size * cycles_asked <= num_free_blocks:
            return limit
        num_free_blocks += self.blocks_needed()
        per_cycle = sum(self._phases[:size])  # requests with a reservation take none
        if per_cycle * cycles_asked <= num_free_blocks:
            return limit
        cycles = num_free_blocks // per_cycle
        left = num_free_blocks - cycles * per_cycle
        steps = cycles * size
        phase = self.clock.ticks % size
        phases = self._phases
        for _ in range(size):
            left -= phases[phase]
            if left < 0 or steps >= limit:
                break
            steps += 1
            phase += 1
            if phase == size:
                phase = 0
        return min(steps, limit)

    def block_use(self, used: int, steps: int) -> list[int]:
        """Used blocks in each of the next `steps` decode steps, with `used` blocks in the first of them."""
        size, phases = self.block_size, self._phases
        phase = self.clock.ticks % size
        if steps <= size:
            use = [used]
            for taken in phases[phase + 1 : phase + steps]:
                used += taken
                use.append(used)
            return use
        takes = phases[phase : phase + size] * -(-steps // size)
        del takes[steps:]
        takes[0] = used
        return list(accumulate(takes))

    # Advancing

    def late_gaps(self, start_s: float, end_s: float) -> Sequence[tuple[float, int, float]]:
        """Gaps between tokens that a step closes, as (seconds, requests, end), but for those that begin with it."""
        fresh = self._fresh
        if self._last_end_s == start_s and (not fresh or (len(fresh) == 1 and start_s in fresh)):
            return ()
        gaps = []
        old = self.size - self.held
        for last_token_s, requests in fresh.items():
            old -= requests
            if last_token_s != start_s:
                gaps.append((end_s - last_token_s, requests, end_s))
        if old and self._last_end_s != start_s:
            gaps.append((end_s - self._last_end_s, old, end_s))
        return gaps

    def advance(self, steps: int, last_end_s: float) -> list[RequestState]:
        """`steps` decode steps have run; returns the requests that had their last token with the last of them."""
        if self._fresh:
            self._fresh.clear()
        ticks = self.clock.ticks + steps
        self.clock.ticks = ticks
        self.context += self.size * steps
        self._last_end_s = last_end_s
        finishing, after = self._finishing, ticks + 1 << _ENTRY_BITS
        if not finishing or finishing[0] >= after:
            return _NONE
        done: list[RequestState] = []
        while finishing and finishing[0] < after:
            key = heappop(finishing)
            live = self._due.pop(key)
            if live.entry == key & _ENTRIES:
                done.append(live)
        return done
