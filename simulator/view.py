"""A replica as its policy sees it: attributes that the engine refreshes before it asks for a plan."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from simulator.plan import BatchView, WaitingView
    from simulator.state import ReplicaState


class ReplicaView:
    """See `simulator.plan.View` for the meaning of the members."""

    __slots__ = (
        "_state",
        "block_size",
        "decode_blocks_needed",
        "now_s",
        "num_blocks",
        "num_decoding",
        "num_free_blocks",
        "prefilling",
        "running",
        "waiting",
    )

    def __init__(self, state: ReplicaState) -> None:
        self._state = state
        self.waiting = cast("WaitingView", state.waiting)
        self.running = cast("BatchView", state.running.keys())
        self.prefilling = cast("BatchView", state.prefilling.keys())
        self.block_size = state.batch.block_size
        self.num_blocks = state.blocks.num_blocks
        self.now_s = 0.0
        self.num_decoding = 0
        self.num_free_blocks = 0
        self.decode_blocks_needed = 0

    def look(self, now_s: float) -> None:
        """See the replica as it is at `now_s`."""
        state = self._state
        self.now_s = now_s
        self.num_decoding = len(state.running) - len(state.prefilling)
        self.num_free_blocks = state.blocks.num_free
        self.decode_blocks_needed = state.batch.blocks_needed()
        if state.paused:
            size = self.block_size
            self.decode_blocks_needed += sum([live.base_computed % size == 0 for live in state.paused])

    @property
    def num_held(self) -> int:
        return len(self._state.held)

    @property
    def num_free_host_blocks(self) -> int:
        return self._state.blocks.num_free_host
