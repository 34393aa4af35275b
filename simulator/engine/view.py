"""A replica as its policy sees it: attributes that the engine refreshes before it asks for a plan."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

from simulator.request import RequestView
from simulator.request_state import RequestState
from simulator.timing.cost import StepShape

if TYPE_CHECKING:
    from simulator.engine.state import ReplicaState
    from simulator.plan import BatchView, WaitingView
    from simulator.timing.executor import Outlook


class ReplicaView:
    """See `simulator.plan.View` for the meaning of the members."""

    __slots__ = (
        "_admissions",
        "_admitted_tick",
        "_order_at",
        "_outlook",
        "_state",
        "block_size",
        "decode_blocks_needed",
        "note",
        "now_s",
        "num_blocks",
        "num_decoding",
        "num_free_blocks",
        "prefilling",
        "running",
        "step_tokens",
        "waiting",
    )

    def __init__(self, state: ReplicaState, outlook: Outlook | None = None) -> None:
        self._state = state
        self._outlook = outlook
        self._admissions = 0  # those that were seen, and the batch's ticks when the last of them was
        self._admitted_tick = 0
        self.waiting = cast("WaitingView", state.waiting)
        self._order_at = None if state.waiting.timeless else state.waiting.at
        self.running = cast("BatchView", state.running.keys())
        self.prefilling = cast("BatchView", state.prefilling.keys())
        self.block_size = state.batch.block_size
        self.num_blocks = state.blocks.num_blocks
        self.now_s = 0.0
        self.step_tokens: int | None = None
        self.note: object = None
        self.num_decoding = 0
        self.num_free_blocks = 0
        self.decode_blocks_needed = 0

    def look(self, now_s: float) -> None:
        """See the replica as it is at `now_s`."""
        state = self._state
        self.now_s = now_s
        if state._admissions != self._admissions:
            self._admissions = state._admissions
            self._admitted_tick = state.batch.ticks
        if self._order_at is not None:
            self._order_at(now_s)
        self.step_tokens = None
        self.num_decoding = len(state.running) - len(state.prefilling) - state.num_leaving
        self.num_free_blocks = state.blocks.num_free
        self.decode_blocks_needed = state.batch.blocks_needed()
        if state.paused:
            size = self.block_size
            boundary = [live.base_computed % size == 0 and not live.reserved_tokens for live in state.paused]
            self.decode_blocks_needed += sum(boundary)

    def look_again(self, step_tokens: int) -> None:
        """See what is left after a first part of the step's plan, of so many tokens."""
        # Who was admitted by that part has not been in a step yet.
        seen = self._admissions, self._admitted_tick
        self.look(self.now_s)
        self._admissions, self._admitted_tick = seen
        self.step_tokens = step_tokens

    @property
    def caches_prefixes(self) -> bool:
        return self._state.cache is not None

    def blocks_freed(self, requests: Sequence[RequestView]) -> int:
        cache = self._state.cache
        if cache is None:
            return sum([request.num_blocks for request in requests])
        return cache.freed_with({request.row: request.num_blocks for request in requests})

    def recompute_s(self, request: RequestView, *, mixed: bool = True) -> float | None:
        if self._outlook is None:
            return None
        return self._outlook.recompute_s(request.num_tokens, self._decodes() if mixed else StepShape(0, 0))

    def swap_s(self, request: RequestView) -> float | None:
        if self._outlook is None:
            return None
        return self._outlook.swap_s(request.num_blocks, self._decodes())

    def _decodes(self) -> StepShape:
        """A step in which those who decode go on, and nothing else."""
        batch = self._state.batch
        if not batch.size:
            return StepShape(0, 0)
        return StepShape(batch.size, batch.context + batch.size, 0, 0, 0, 0, *batch.next_context_stats())

    def prefix_hits(self, request: RequestView) -> tuple[int, int]:
        cache = self._state.cache
        if cache is None or not isinstance(request, RequestState):
            return 0, 0
        return cache.hits(request.request, request.num_tokens)

    @property
    def num_held(self) -> int:
        return len(self._state.held)

    @property
    def decode_steps(self) -> int:
        return self._state.batch.ticks

    @property
    def decode_steps_since_admission(self) -> int:
        return self._state.batch.ticks - self._admitted_tick

    @property
    def num_swapped(self) -> int:
        return self._state.num_swapped

    @property
    def num_free_host_blocks(self) -> int:
        return self._state.blocks.num_free_host
