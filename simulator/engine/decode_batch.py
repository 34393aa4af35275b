"""The decoding requests of a replica, kept as sums so that a decode step costs the same for one as for a thousand.

`ticks` counts decode steps. A request that joined at tick j with c computed tokens has c + ticks - j now, finishes at
tick j + (tokens still to come), and needs a new block at every tick t with (c + t - j) % block_size == 0: so the
requests are counted by (j - c) % block_size, and the blocks that any number of steps will take is known beforehand.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heappop, heappush
from itertools import accumulate
from math import nan
from typing import TYPE_CHECKING

from simulator.engine.context_stats import ContextStats
from simulator.request_state import DECODING, RequestState

if TYPE_CHECKING:
    from simulator.queues.meter import OutputMeter

_NOBODY: list[RequestState] = []
_OVERRUN = -2  # a finish_tick that has passed


class DecodeBatch:
    """Requests that decode together, and the gaps between their tokens."""

    __slots__ = (
        "_entries",
        "_finishing",
        "_fresh",
        "_last_end_s",
        "_phases",
        "block_size",
        "context",
        "held",
        "meter",
        "size",
        "spread",
        "ticks",
    )

    def __init__(self, block_size: int) -> None:
        self.block_size = block_size
        self.ticks = 0
        self.size = 0  # requests that compute a token in a decode step, held ones included
        self.held = 0  # of these, finished: kept until all have, or until it is known that they have
        self.context = 0  # their KV tokens
        # Requests by the phase at which they need a block. Twice over, so that any cycle of ticks is a slice.
        self._phases = [0] * (2 * block_size)
        self._finishing: list[tuple[int, int, RequestState]] = []
        self._entries = 0
        self._last_end_s = nan  # when the last decode step ended
        self.meter: OutputMeter | None = None  # told who decodes, for a queue that depends on it
        self.spread: ContextStats | None = None  # kept where the executor asks for it
        self._fresh: dict[float, int] = {}  # requests that have not decoded since they joined, by last token's time

    # Joining and leaving

    def join(self, live: RequestState) -> None:
        """`live` has sampled a token and decodes from the next step on."""
        computed = live.base_computed
        live.state = DECODING
        live.paused = False
        ticks = self.ticks
        live.join_tick = ticks
        self.size += 1
        self.context += computed
        if live.reserved_tokens == 0:
            phase = (ticks - computed) % self.block_size
            self._phases[phase] += 1
            self._phases[phase + self.block_size] += 1
        if self.spread is not None:
            self.spread.add(computed - ticks)
        finish_tick = ticks + live.output_tokens - live.base_outputs
        live.finish_tick = finish_tick
        self._entries += 1
        heappush(self._finishing, (finish_tick, self._entries, live))
        fresh = self._fresh
        fresh[live.last_token_s] = fresh.get(live.last_token_s, 0) + 1
        if self.meter is not None:
            self.meter.joined(live)

    def leave(self, live: RequestState) -> None:
        """`live` stops decoding; its counts and the time of its last token are settled."""
        ticks = self.ticks
        ticked = ticks - live.join_tick
        overrun = live.finish_tick == _OVERRUN
        if overrun:
            self.held -= 1
        elif ticked:
            live.last_token_s = self._last_end_s
        else:
            self._unfresh(live.last_token_s)
        computed = live.base_computed + ticked
        self.size -= 1
        self.context -= computed
        if live.reserved_tokens == 0:
            phase = (ticks - computed) % self.block_size
            self._phases[phase] -= 1
            self._phases[phase + self.block_size] -= 1
        if self.spread is not None:
            self.spread.remove(computed - ticks)
        live.base_computed = computed
        live.join_tick = ticks
        live.finish_tick = -1  # its entry in the heap is stale
        if overrun:
            return
        live.base_outputs += ticked
        if self.meter is not None:
            self.meter.left(live)

    def overrun(self, live: RequestState) -> None:
        """`live` has its last token, and decodes on until that is known: `leave` takes it out as any other."""
        if live.state is DECODING:
            ticked = self.ticks - live.join_tick
            live.base_computed += ticked
            live.base_outputs += ticked
            live.join_tick = self.ticks
            live.last_token_s = self._last_end_s
        else:
            self.join(live)
            self._unfresh(live.last_token_s)
        live.finish_tick = _OVERRUN
        self.held += 1
        if self.meter is not None:
            self.meter.left(live)

    def hold(self, live: RequestState) -> None:
        """`live` has just finished by decoding and goes on computing in its slot: padding."""
        ticked = self.ticks - live.join_tick
        live.base_computed += ticked
        live.base_outputs += ticked
        self.held += 1
        if self.meter is not None:
            self.meter.left(live)

    def join_held(self, live: RequestState) -> None:
        """`live` has finished in its prefill and takes a slot to hold."""
        self.size += 1
        self.held += 1
        self.context += live.num_computed_tokens
        if self.spread is not None:
            self.spread.add(live.num_computed_tokens - self.ticks)

    def release_held(self) -> None:
        """Every request of the batch has finished: all slots come free."""
        self.size = 0
        self.held = 0
        self.context = 0
        if self.spread is not None:
            self.spread.clear()

    def _unfresh(self, last_token_s: float) -> None:
        left = self._fresh[last_token_s] - 1
        if left:
            self._fresh[last_token_s] = left
        else:
            del self._fresh[last_token_s]

    # Looking ahead

    def next_context_stats(self) -> tuple[int, int]:
        """The longest context after the next decode step and the sum of squares; zeros where nobody asked for them."""
        return (0, 0) if self.spread is None else self.spread.at(self.ticks + 1)

    def steps_to_finish(self) -> int:
        """Decode steps until somebody finishes."""
        finishing = self._finishing
        while finishing[0][2].finish_tick != finishing[0][0]:
            heappop(finishing)
        return finishing[0][0] - self.ticks

    def blocks_needed(self) -> int:
        """Blocks that the next decode step takes."""
        return self._phases[self.ticks % self.block_size]

    def steps_that_fit(self, num_free_blocks: int, limit: int) -> int:
        """How many successive decode steps, at most `limit`, find the blocks they need."""
        size = self.block_size
        cycles_asked = -(-limit // size)
        if self.size * cycles_asked <= num_free_blocks:
            return limit
        per_cycle = sum(self._phases[:size])  # those with a reservation take none
        if per_cycle * cycles_asked <= num_free_blocks:
            return limit
        cycles = num_free_blocks // per_cycle
        left = num_free_blocks - cycles * per_cycle
        steps = cycles * size
        phase = self.ticks % size
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
        """Used blocks in each of the next `steps` decode steps, `used` being those used before."""
        size = self.block_size
        phase = self.ticks % size
        if steps == 1:
            return [used + self._phases[phase]]
        if steps <= size:
            takes = self._phases[phase : phase + steps]
        else:
            takes = self._phases[phase : phase + size] * -(-steps // size)
            del takes[steps:]
        takes[0] += used
        return list(accumulate(takes))

    # Going on

    def late_gaps(self, start_s: float, end_s: float) -> Sequence[tuple[float, int, float]]:
        """The gaps, as (seconds, requests, end), closed by a step of those whose last token came before its start."""
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
        ticks = self.ticks + steps
        self.ticks = ticks
        self.context += self.size * steps
        self._last_end_s = last_end_s
        finishing = self._finishing
        if not finishing or finishing[0][0] > ticks:
            return _NOBODY
        done: list[RequestState] = []
        while finishing and finishing[0][0] <= ticks:
            tick, _, live = heappop(finishing)
            if live.finish_tick == tick:
                live.finish_tick = -1  # a second entry of it, after a pause, is stale
                done.append(live)
        return done
