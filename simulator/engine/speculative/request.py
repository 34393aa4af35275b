"""A request in service where drafts are verified: what vLLM's `Request` keeps beside the plain counts."""

from collections.abc import Mapping

from simulator.request import Request
from simulator.request_state import WAITING, DecodeClock, RequestState


class DraftingRequest(RequestState):
    """A request whose counts change step by step; `simulator.policies.chunked_prefill.drafted` sees it.

    `reserved_tokens` is the furthest token that it has had blocks for: none is given back when drafts are rejected.
    `base_computed` counts the drafts of steps in flight as if they were accepted.
    """

    __slots__ = (
        "_draft_counts", "in_flight_tokens", "num_drafts", "num_output_placeholders",
        "sampling_steps", "stale_tokens", "verify_steps",
    )  # fmt: skip

    def __init__(self, request: Request, clock: DecodeClock) -> None:
        super().__init__(request, clock)
        self.num_drafts = 0  # that its next step verifies
        self.num_output_placeholders = 0  # sampled tokens and drafts of steps in flight, with asynchronous scheduling
        self.in_flight_tokens = 0  # scheduled, their results still to come
        self.stale_tokens = 0  # of these, scheduled before its last preemption
        self.sampling_steps = 0
        self.verify_steps = 0
        self._draft_counts: dict[tuple[int, int], int] = {}

    # No decode step is counted by the clock, so that counts are simpler than those of a plain request.

    @property
    def output_tokens_so_far(self) -> int:
        return self.base_outputs

    @property
    def num_tokens(self) -> int:
        return self.input_tokens + self.base_outputs

    @property
    def num_computed_tokens(self) -> int:
        return self.base_computed

    @property
    def num_blocks(self) -> int:
        if self.status is WAITING:
            return 0
        tokens = self.reserved_tokens if self.reserved_tokens > self.base_computed else self.base_computed
        return -(-tokens // self.clock.block_size)

    @property
    def num_tokens_to_compute(self) -> int:
        """Tokens of its prompt or, decoding, the sampled token and the drafts behind it."""
        known = self.input_tokens + self.base_outputs
        return known + self.num_output_placeholders + self.num_drafts - self.base_computed

    def verified(self, drafts: int, accepted: int, steps: int = 1) -> None:
        """So many steps have each verified drafts of it, padding too, as vLLM's `observe_draft` counts them."""
        if steps:
            key = drafts, accepted
            self._draft_counts[key] = self._draft_counts.get(key, 0) + steps

    @property
    def draft_counts(self) -> Mapping[tuple[int, int], int]:
        """Its verify steps, by drafts and accepted drafts."""
        return self._draft_counts

    def take_back(self) -> None:
        """It is preempted: results on their way are delivered, and change none of its counts."""
        self.num_drafts = 0
        self.num_output_placeholders = 0
        self.stale_tokens = self.in_flight_tokens
        known = self.input_tokens + self.base_outputs
        if self.base_computed > known:
            self.base_computed = known  # drafts are no loss
