"""The decoding requests of a replica that takes memory ahead of its drafts, as SGLang does, and that memory.

A request has blocks for its committed tokens and so many ahead, in whole blocks, and gives none back before it leaves:
`page_aligned_decode_alloc_lens` (python/sglang/srt/mem_cache/allocation_sizing.py:73, SGLang 0.5.23).
"""

from collections.abc import Sequence

from simulator.division import cdiv
from simulator.engine.speculative.batch import VerifyBatch
from simulator.engine.state import ReplicaState
from simulator.request_state import RequestState


class AheadBatch(VerifyBatch):
    """A decode batch whose requests own memory for `tokens_ahead` beyond their committed tokens."""

    __slots__ = ("_decoding", "tokens_ahead")

    def __init__(self, block_size: int, tokens_ahead: int) -> None:
        super().__init__(block_size)
        self.tokens_ahead = tokens_ahead
        self._decoding: dict[RequestState, None] = {}

    def join(self, live: RequestState, tokens_left: int) -> None:
        super().join(live, tokens_left)
        self._decoding[live] = None

    def leave(self, live: RequestState) -> None:
        super().leave(live)
        del self._decoding[live]

    def blocks_needed(self) -> int:
        """Blocks that the next decode step takes (`_new_tokens_required_next_decode_spec_v2`)."""
        size, ahead = self.block_size, self.tokens_ahead
        return sum([cdiv(live.base_computed + ahead, size) - live.num_blocks for live in self._decoding])


def take_ahead(state: ReplicaState, decoders: Sequence[RequestState], tokens_ahead: int) -> None:
    """Take the blocks of a decode step (`eagle_prepare_for_decode`). PolicyError if they are lacking."""
    size = state.batch.block_size
    taken, tokens = [], 0
    for live in decoders:
        owned = max(live.reserved_tokens, live.base_computed)
        room = cdiv(live.base_computed + tokens_ahead, size) * size
        tokens += room - owned
        taken.append((live, room, room // size - cdiv(owned, size)))
    needed = sum([blocks for _, _, blocks in taken])
    if needed > state.blocks.num_free:
        seqs, free = len(decoders), state.blocks.num_free
        raise state.broken(f"decodes {seqs} requests, which takes {needed} blocks; {free} are free")
    if state.tree is not None and tokens:  # with pages of several tokens one for each request (allocation.py:192)
        state.tree.make_room(cdiv(tokens, size) + (len(decoders) if size > 1 else 0))
    for live, room, blocks in taken:
        if blocks:
            state.blocks.allocate(live.row, blocks)
        live.reserved_tokens = room
