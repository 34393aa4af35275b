"""A request in service where a connector may have its KV."""

from simulator.engine.speculative.request import DraftingRequest
from simulator.request import Request
from simulator.request_state import DecodeClock


class ConnectedRequest(DraftingRequest):
    """A request that may wait for a load. `base_computed` counts the tokens of a load from its beginning on.

    `is_loading`: the load is under way. `is_settled`: no load has ended that is not counted yet.
    """

    __slots__ = ("external_tokens", "is_loading", "is_settled", "load_failed")

    def __init__(self, request: Request, clock: DecodeClock) -> None:
        super().__init__(request, clock)
        self.is_loading = False
        self.is_settled = True
        self.load_failed = False
        self.external_tokens = 0  # of the present load
