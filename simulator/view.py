"""A replica as its policy sees it: attributes that the engine refreshes before it asks for a plan."""

from __future__ import annotations

from collections.abc import KeysView
from typing import TYPE_CHECKING, cast

from simulator.request import RequestView

if TYPE_CHECKING:
    from simulator.plan import WaitingView
    from simulator.state import ReplicaState


class ReplicaView:
    """See `simulator.plan.View` for the meaning of the members."""

    __slots__ = (
        "_state",
        "block_size",
        "now_s",
        "num_blocks",
        "num_decoding",
        "num_free_blocks",
        "num_held",
        "prefilling",
        "running",
        "waiting",
    )

    def __init__(self, state: ReplicaState) -> None:
        self._state = state
        self.waiting = cast("WaitingView", state.waiting)
        self.running = cast("KeysView[RequestView]", state.running.keys())
        self.prefilling = cast("KeysView[RequestView]", state.prefilling.keys())
        self.block_size = state.batch.block_size
        self.num_blocks = state.blocks.num_blocks
        self.now_s = 0.0
        self.num_decoding = 0
        self.num_held = 0
        self.num_free_blocks = 0

    def look(self, now_s: float) -> None:
        """See the replica as it is at `now_s`."""
        state = self._state
        self.now_s = now_s
        self.num_held = len(state.held)
        self.num_decoding = len(state.running) - len(state.prefilling)
        self.num_free_blocks = state.blocks.num_free

    @property
    def num_free_host_blocks(self) -> int:
        return self._state.blocks.num_free_host

    @property
    def decode_blocks_needed(self) -> int:
        state = self._state
        needed = state.batch.blocks_needed()
        for live in state.paused:
            needed += live.num_computed_tokens % self.block_size == 0
        return needed
