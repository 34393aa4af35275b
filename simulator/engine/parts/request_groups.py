"""Blocks of several KV groups, for a replica that plans and applies request by request."""

from simulator.engine.itemized_step import DraftingRequest
from simulator.memory.group_tables import Reach
from simulator.memory.grouped import GroupedBlocks
from simulator.request_state import RequestState

# Blocks of several KV groups, for a replica that plans and applies request by request.


class RequestGroups:
    """An `Asking`. A step's blocks cover the drafter's `lookahead` too, up to the `longest` context."""

    __slots__ = ("_longest", "_lookahead", "blocks")
    most_of_decode = 0  # it depends on the drafts

    def __init__(self, blocks: GroupedBlocks, lookahead: int, longest: int) -> None:
        self.blocks = blocks
        self._lookahead = lookahead
        self._longest = longest

    def processed(self, live: RequestState) -> int:
        """See `Asking.processed`."""
        assert isinstance(live, DraftingRequest)
        return max(0, live.base_computed - live.in_flight_tokens)

    def asked(self, live: RequestState, computed: int, tokens: int, loaded: int = 0) -> Reach:
        """See `Asking.asked`."""
        end = min(computed + tokens + (self._lookahead if tokens else 0), self._longest)
        return self.blocks.asked(live.row, computed, end, max(live.input_tokens, live.num_tokens - 1), loaded)

    def quiet_steps(self, live: RequestState) -> int:
        """See `Asking.quiet_steps`."""
        return 0

    def quiet_run(self) -> int:
        """See `Asking.quiet_run`."""
        return 1
