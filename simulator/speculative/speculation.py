"""Speculative decoding of a replica: what its policy sees of it, and what the drafter and the model do."""

from typing import NamedTuple, Protocol

from simulator.connector import ConnectorView
from simulator.request import RequestView
from simulator.speculative.acceptance import Acceptance
from simulator.speculative.config import SpeculativeConfig


class Proposals(Protocol):
    """How many drafts a lookup finds: the same whatever a policy does."""

    def proposed(self, row: int, sampling_step: int) -> int:
        """Drafts found after the request's sampling step of this number, from 0; the engine caps it."""


class DraftingView(RequestView, Protocol):
    """A request whose drafts are verified, as a policy sees it: `num_tokens_to_compute` counts its drafts."""

    @property
    def num_output_placeholders(self) -> int:
        """Tokens and drafts of the step in flight, of which it is not known yet how many there will be."""

    @property
    def stale_tokens(self) -> int:
        """Tokens in flight that were scheduled before its last preemption."""


class Drafting(NamedTuple):
    """Speculative decoding as a policy sees it. `max_model_len` is the model's longest context, in tokens.

    A replica with a KV `connector` is planned like one with drafts, request by request, and has none.
    """

    config: SpeculativeConfig
    max_model_len: int
    connector: ConnectorView | None = None


class Speculation(NamedTuple):
    """Speculative decoding of a replica. A lookup of n-grams (runner v1) finds all drafts without `proposals`."""

    config: SpeculativeConfig
    acceptance: Acceptance
    max_model_len: int
    proposals: Proposals | None = None
