"""The decoding requests of a replica with drafts: each goes on by a number of tokens of its own, so none are summed."""

from simulator.engine.decode_batch import DecodeBatch
from simulator.request_state import DECODING, RequestState


class VerifyBatch(DecodeBatch):
    """A decode batch that only counts its requests; their steps stand in the plan."""

    def join(self, live: RequestState, tokens_left: int) -> None:
        """`live` has its prompt computed, and decodes from the next step on."""
        live.status = DECODING
        self.size += 1

    def leave(self, live: RequestState) -> None:
        """`live` stops decoding."""
        self.size -= 1

    def blocks_needed(self) -> int:
        """None are needed that no plan names."""
        return 0
