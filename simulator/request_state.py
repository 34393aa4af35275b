"""A request in service: the engine's mutable account of it, without the length of its answer.

Policies get these objects (as `simulator.request.RequestView`), so nothing here holds the true output length or leads
to it: the engine keeps that apart (`simulator.engine.state.ReplicaState.requests`).
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from math import nan
from typing import Final

from simulator.request import Request


class RequestStatus(Enum):
    """The status of a request."""

    WAITING = "waiting"
    PREFILLING = "prefilling"
    DECODING = "decoding"
    SWAPPED = "swapped"
    LOADING = "loading"  # it holds blocks for KV that a connector loads, and neither waits nor runs
    LEAVING = "leaving"  # its last token is being computed: nothing is left to plan
    FINISHED = "finished"
    ABORTED = "aborted"  # and in its slot until the whole batch has finished


# The members as plain names: a look-up in the class takes ten times as long, and every step makes several.
WAITING: Final = RequestStatus.WAITING
PREFILLING: Final = RequestStatus.PREFILLING
DECODING: Final = RequestStatus.DECODING
SWAPPED: Final = RequestStatus.SWAPPED
LOADING: Final = RequestStatus.LOADING
LEAVING: Final = RequestStatus.LEAVING
FINISHED: Final = RequestStatus.FINISHED
ABORTED: Final = RequestStatus.ABORTED


class DecodeClock:
    """Decode steps of one replica, counted in `ticks`; `block_size` is in tokens.

    The counts of decoding requests advance with it. Each replica has its own, which also marks its requests.
    `prompt_steps` are its steps without decodes; `throttled` says of a rank in lockstep whether it holds prompts back.
    `plans` counts those of a pipeline, empty ones too.
    """

    __slots__ = ("block_size", "plans", "prompt_steps", "throttled", "ticks")

    def __init__(self, block_size: int) -> None:
        self.block_size = block_size
        self.ticks = 0
        self.plans = 0
        self.prompt_steps = 0
        self.throttled: bool | None = None


class Setbacks:
    """A request's preemptions and their cost, and what prefix caches saved it then. Most requests have none."""

    # No dataclass, whose constructor is interpreted.
    __slots__ = (
        "aborted_tokens", "cached_tokens", "external_tokens", "left_s", "preemptions", "recomputed_tokens",
        "requeued_s", "skipped_tokens", "swapped_in_blocks", "swapped_out_blocks",
    )  # fmt: skip

    def __init__(self) -> None:
        self.preemptions = 0
        self.recomputed_tokens = 0
        self.swapped_out_blocks = 0
        self.swapped_in_blocks = 0
        self.cached_tokens = 0
        self.requeued_s = 0.0
        self.aborted_tokens = 0  # computed for it until it was aborted
        self.left_s = nan  # the last preemption
        self.external_tokens = 0  # loaded by a connector
        self.skipped_tokens = 0  # found in a cache without ever having been computed for this request


class RequestState:
    """A request's state: a `RequestView`, and what the engine keeps beside it.

    While it decodes, its counts are those at joining the batch (`base_*`, at `join_tick`) plus the clock's ticks
    since, worked out when asked for: a step costs nothing per request.
    """

    __slots__ = (
        "admission", "arrival_s", "base_computed", "base_outputs", "before_s", "class_name", "clock", "deadline_s",
        "entry", "first_token_s", "found_tokens", "images", "input_tokens", "join_tick", "last_token_s", "lora",
        "lost_tokens", "max_tokens", "padding_tokens", "paused", "place", "predicted_output_tokens", "priority",
        "promoted_at_tokens", "request_id", "reserved_tokens", "row", "scheduled_s", "setbacks", "status",
    )  # fmt: skip

    def __init__(self, request: Request, clock: DecodeClock) -> None:
        self.clock = clock
        (
            self.row,
            self.request_id,
            self.arrival_s,
            self.input_tokens,
            _,
            self.max_tokens,
            self.priority,
            self.class_name,
            _,
            self.predicted_output_tokens,
            self.deadline_s,
            _,
            _,
            self.lora,
            self.images,
            _,
        ) = request
        self.status = WAITING
        self.admission = -1  # its number among all admissions
        self.place = -1  # in the batch: the larger, the further behind
        self.reserved_tokens = 0
        self.padding_tokens = 0
        self.paused = False
        self.base_computed = 0
        self.base_outputs = 0
        self.join_tick = 0
        self.entry = 0  # counts the joinings of its decode batch; 0 outside
        self.scheduled_s = nan
        self.first_token_s = nan
        self.last_token_s = nan
        self.before_s = nan  # the token before `last_token_s`, unless the decode step before that gave it
        self.lost_tokens = 0  # computed tokens that the last preemption threw away
        self.promoted_at_tokens: int | None = None
        self.found_tokens = 0  # leading tokens that were cached; where it has setbacks, these count them
        self.setbacks: Setbacks | None = None

    def __repr__(self) -> str:
        return f"<{self.request_id} {self.status.value} {self.num_computed_tokens}/{self.num_tokens}>"

    @property
    def is_decoding(self) -> bool:
        return self.status is DECODING

    @property
    def is_swapped(self) -> bool:
        return self.status is SWAPPED

    @property
    def num_preemptions(self) -> int:
        return 0 if self.setbacks is None else self.setbacks.preemptions

    @property
    def waiting_since_s(self) -> float:
        """Its arrival, or its last preemption."""
        return self.arrival_s if self.setbacks is None or self.setbacks.preemptions == 0 else self.setbacks.left_s

    @property
    def _ticked(self) -> int:
        """Decode steps since it joined the batch."""
        if self.status is DECODING and not self.paused:
            return self.clock.ticks - self.join_tick
        return 0

    @property
    def output_tokens_so_far(self) -> int:
        if self.status is DECODING and not self.paused:
            return self.base_outputs + self.clock.ticks - self.join_tick
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
        if self.status is SWAPPED or self.status is WAITING:
            return 0
        tokens = self.num_computed_tokens
        if tokens < self.reserved_tokens:
            tokens = self.reserved_tokens
        return -(-tokens // self.clock.block_size)

    @property
    def draft_counts(self) -> Mapping[tuple[int, int], int] | None:
        """Verify steps by drafts and accepted drafts; None where nothing is drafted."""
        return None

    def take_over(self, prefilled: RequestState) -> None:
        """Go on where another replica has stopped: it computed the prompt and sampled the first token."""
        self.scheduled_s, self.first_token_s = prefilled.scheduled_s, prefilled.first_token_s
        self.last_token_s = prefilled.last_token_s
        self.base_computed, self.base_outputs = prefilled.base_computed, prefilled.base_outputs
        self.setbacks, self.found_tokens = prefilled.setbacks, prefilled.found_tokens

    def found(self, tokens: int) -> None:
        """So many of its leading tokens are cached, and need not be computed."""
        setbacks = self.setbacks
        if tokens:
            self.base_computed = tokens
        if setbacks is None:
            self.found_tokens += tokens
        elif tokens:
            # After a preemption it may find blocks of its own output; the hit rate is one of prompt tokens.
            setbacks.cached_tokens += tokens if tokens < self.input_tokens else self.input_tokens
            # So much of what a preemption threw away need not be computed again.
            found_again = tokens if tokens < self.lost_tokens else self.lost_tokens
            setbacks.recomputed_tokens -= found_again
            setbacks.skipped_tokens += tokens - found_again
        self.lost_tokens = 0

    def forget(self) -> int:
        """Throw its KV away, but not its sampled tokens; returns the computed tokens that this loses."""
        lost = self.lost_tokens = max(0, self.base_computed - self.padding_tokens)
        self.base_computed = 0
        self.reserved_tokens = 0
        self.padding_tokens = 0
        return lost

    def lose_outputs(self, lost: int, last_s: float) -> None:
        """Throw away its last `lost` sampled tokens, which the client never saw; the one before came at `last_s`."""
        self.base_outputs -= lost
        self.last_token_s = last_s
        if not self.base_outputs:
            self.first_token_s = nan

    def set_back(self) -> Setbacks:
        """Its setbacks, recorded from the first on."""
        setbacks = self.setbacks
        if setbacks is None:
            setbacks = self.setbacks = Setbacks()
            setbacks.cached_tokens = setbacks.skipped_tokens = self.found_tokens
        return setbacks


# A prompt chunk in execution: the request, the tokens to compute, and how many of these are padding.
ScheduledChunk = tuple[RequestState, int, int]


def place(live: RequestState) -> int:
    """The key of the batch's order."""
    return live.place
