"""The decoding requests of a replica with drafts: each goes on by a number of tokens of its own, so none are summed."""

from simulator.engine.decode_batch import DecodeBatch
from simulator.request_state import DECODING, RequestState


class VerifyBatch(DecodeBatch):
    """A decode batch that only counts its requests; their steps stand in the plan.

    `run_used` are the blocks in use during the steps of a run in execution, but for its first.
    """

    __slots__ = ("run_used",)

    def __init__(self, block_size: int) -> None:
        super().__init__(block_size)
        self.run_used: list[int] = []

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

    def block_use(self, used: int, steps: int) -> list[int]:
        """Used blocks in each of the first `steps` steps of the run in execution."""
        return [used, *self.run_used[: steps - 1]]
