"""A request in service where a pipeline computes several steps at once."""

from simulator.engine.speculative.request import DraftingRequest
from simulator.request import Request
from simulator.request_state import DecodeClock


class PipelinedRequest(DraftingRequest):
    """A request without drafts, of which several steps may be in flight.

    With asynchronous scheduling it decodes again with the plan of the number `decode_from`, at the earliest, and the
    first stage has its last token at `token_s`.
    """

    __slots__ = ("decode_from", "token_s")

    def __init__(self, request: Request, clock: DecodeClock) -> None:
        super().__init__(request, clock)
        self.decode_from = 0
        self.token_s = 0.0

    @property
    def num_tokens_to_compute(self) -> int:
        """Tokens that a plan may compute now; 0 while those that it has are in flight."""
        if self.clock.plans < self.decode_from:
            return 0
        return self.input_tokens + self.base_outputs + self.num_output_placeholders - self.base_computed
