"""A request while it is served: the engine's own mutable account of it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from math import nan
from typing import TYPE_CHECKING

from simulator.request import Request

if TYPE_CHECKING:
    from simulator.engine.decode_batch import DecodeBatch


class RequestStatus(Enum):
    """Where a request is."""

    WAITING = "waiting"
    PREFILLING = "prefilling"
    DECODING = "decoding"
    SWAPPED = "swapped"
    LEAVING = "leaving"  # its last token is being computed, and so nothing is left to plan for it
    FINISHED = "finished"


# The members by plain names: looking one up in its class takes ten times as long, and it is done at every step.
WAITING, PREFILLING, DECODING, SWAPPED, LEAVING, FINISHED = RequestStatus


@dataclass(slots=True)
class Setbacks:
    """What preemption did to a request, and what the prefix cache saved it. Most requests have none."""

    preemptions: int = 0
    recomputed_tokens: int = 0
    swapped_out_blocks: int = 0
    swapped_in_blocks: int = 0
    cached_tokens: int = 0
    requeued_s: float = 0.0
    left_s: float = nan  # since when it waits again


class RequestState:
    """A request's state. As a `RequestView` it is what policies see.

    While it decodes, its counts advance with the batch's `ticks` from what they were when it joined (`base_*`, at
    `join_tick`), and are worked out when asked for: a step costs nothing per request.
    """

    __slots__ = (
        "admission",
        "arrival_s",
        "base_computed",
        "base_outputs",
        "batch",
        "finish_tick",
        "first_token_s",
        "input_tokens",
        "join_tick",
        "last_token_s",
        "lost_tokens",
        "max_tokens",
        "output_tokens",
        "padding_tokens",
        "paused",
        "priority",
        "promoted_at_tokens",
        "request",
        "reserved_tokens",
        "row",
        "scheduled_s",
        "setbacks",
        "state",
    )

    def __init__(self, request: Request, batch: DecodeBatch) -> None:
        self.request = request
        self.batch = batch
        row, _, self.arrival_s, self.input_tokens, output_tokens, max_tokens, self.priority = request[:7]
        self.row = row
        self.max_tokens = max_tokens
        # The client's cap ends an answer that would have been longer.
        self.output_tokens = output_tokens if output_tokens < max_tokens else max_tokens
        self.state = WAITING
        self.admission = -1
        self.reserved_tokens = 0
        self.padding_tokens = 0
        self.paused = False
        self.base_computed = 0
        self.base_outputs = 0
        self.join_tick = 0
        self.finish_tick = -1
        self.scheduled_s = nan
        self.first_token_s = nan
        self.last_token_s = nan
        self.lost_tokens = 0  # computed ones that the last preemption threw away
        self.promoted_at_tokens: int | None = None
        self.setbacks: Setbacks | None = None

    def __repr__(self) -> str:
        return f"<{self.request_id} {self.state.value} {self.num_computed_tokens}/{self.num_tokens}>"

    @property
    def request_id(self) -> str:
        return self.request.request_id

    @property
    def class_name(self) -> str:
        return self.request.class_name

    @property
    def predicted_output_tokens(self) -> int | None:
        return self.request.predicted_output_tokens

    @property
    def deadline_s(self) -> float | None:
        return self.request.deadline_s

    @property
    def is_decoding(self) -> bool:
        return self.state is DECODING

    @property
    def is_swapped(self) -> bool:
        return self.state is SWAPPED

    @property
    def num_preemptions(self) -> int:
        return 0 if self.setbacks is None else self.setbacks.preemptions

    @property
    def waiting_since_s(self) -> float:
        """Its arrival, or when it was last preempted."""
        return self.arrival_s if self.setbacks is None or self.setbacks.preemptions == 0 else self.setbacks.left_s

    @property
    def _ticked(self) -> int:
        """Decode steps since it joined the batch."""
        if self.state is DECODING and not self.paused:
            return self.batch.ticks - self.join_tick
        return 0

    @property
    def output_tokens_so_far(self) -> int:
        if self.state is DECODING and not self.paused:
            return self.base_outputs + self.batch.ticks - self.join_tick
        return self.base_outputs

    @property
    def num_tokens(self) -> int:
        return self.input_tokens + self.base_outputs + self._ticked

    @property
    def num_computed_tokens(self) -> int:
        return self.base_computed + self._ticked

    @property
    def num_tokens_to_compute(self) -> int:
        return self.padding_tokens + self.input_tokens + self.base_outputs - self.base_computed

    @property
    def num_blocks(self) -> int:
        if self.state is SWAPPED or self.state is WAITING:
            return 0
        tokens = self.num_computed_tokens
        if tokens < self.reserved_tokens:
            tokens = self.reserved_tokens
        return -(-tokens // self.batch.block_size)

    def forget(self) -> int:
        """Its KV is thrown away; returns how many computed tokens that loses. Sampled tokens are kept."""
        lost = self.lost_tokens = max(0, self.base_computed - self.padding_tokens)
        self.base_computed = 0
        self.reserved_tokens = 0
        self.padding_tokens = 0
        return lost

    def set_back(self) -> Setbacks:
        """Its account of setbacks, opened at the first."""
        if self.setbacks is None:
            self.setbacks = Setbacks()
        return self.setbacks
