"""Text Generation Inference (Hugging Face): prompts in batches of their own, which make the running batch wait.

The rules are those of `batching_task` (router/src/infer.rs, later backends/v3/src/backend.rs) and of
`State::next_batch` (queue.rs beside it), TGI 1 to 3, for models without padding; the defaults are the launcher's.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from annotated_types import doc

from simulator.parameters import Count, CountOrZero, Factor, check_parameters
from simulator.plan import Chunk, Holds, StepPlan, Traits, View, cdiv
from simulator.policies.parts.parameters import MaxNumBatchedTokens, MaxNumSeqs, OrderName
from simulator.policies.parts.reservations import most_tokens, refuse_reservation
from simulator.policies.parts.system import System
from simulator.request import RequestView


@dataclass(frozen=True, slots=True)
class Tgi:
    """A new batch's prefill pauses the running one, so it comes when it is worth that, or has waited long enough.

    While requests run, the heads of the queue are prefilled together if those that fit are at least
    `waiting_served_ratio` times as many as run, or if `max_waiting_tokens` decode steps have passed since the last
    prefill; and there is always a decode step between two prefills. With an empty batch they are prefilled at once. A
    prefill computes at most `max_batch_prefill_tokens`. Prompts and `max_tokens` of all requests together are at most
    `max_batch_total_tokens` and are granted KV blocks at admission: no request is preempted, and none passed over.

    Without a value, `max_batch_prefill_tokens` is `max_num_batched_tokens`, which bounds it in any case, and
    `max_batch_total_tokens` what the KV blocks hold. `max_num_seqs` is TGI's `max_batch_size`. A prompt longer than a
    prefill takes several in a row. TGI rounds the ratio's product down, and counts the prefill's own token as the
    first of `max_waiting_tokens`.
    """

    max_num_seqs: MaxNumSeqs = 256
    max_num_batched_tokens: MaxNumBatchedTokens = 2048
    waiting_served_ratio: Annotated[Factor, doc("waiting requests that fit, per running one, that start a prefill")] = (
        0.3
    )
    max_waiting_tokens: Annotated[CountOrZero, doc("decode steps after which a prefill starts in any case")] = 20
    max_batch_prefill_tokens: Annotated[Count | None, doc("tokens of a prefill; null: max_num_batched_tokens")] = None
    max_batch_total_tokens: Annotated[Count | None, doc("prompts and max_tokens of a batch; null: the KV cache")] = None
    order: OrderName = "fcfs"

    def __post_init__(self) -> None:
        check_parameters(self)

    @property
    def traits(self) -> Traits:
        return Traits(order=self.order)

    def refuses(self, request: RequestView, num_blocks: int, block_size: int) -> str | None:
        total = self.max_batch_total_tokens
        if total is not None and most_tokens(request) > total:
            return (
                f"{request.input_tokens} input tokens and max_tokens = {request.max_tokens} exceed "
                f"max_batch_total_tokens = {total}"
            )
        return refuse_reservation(request, num_blocks, block_size)

    def plan(self, view: View) -> StepPlan:
        budget = self.max_num_batched_tokens
        if self.max_batch_prefill_tokens is not None:
            budget = min(budget, self.max_batch_prefill_tokens)
        if view.prefilling:  # one at most: it is longer than a prefill
            chunks = [Chunk(request, min(request.num_tokens_to_compute, budget)) for request in view.prefilling]
            return StepPlan(prefill=tuple(chunks), decode=False)
        if not view.waiting:
            return _UNTIL_ARRIVAL
        running = len(view.running)
        if running and not view.decode_steps_since_admission:
            return _DECODE
        batch = self._next_batch(view, budget)
        if not batch:
            # The head finds no room until a request has finished.
            return _UNTIL_CHANGE if self.order == "fcfs" or running >= self._slots else _UNTIL_ARRIVAL
        is_late = view.decode_steps_since_admission >= self.max_waiting_tokens
        if running and not is_late and len(batch) < self.waiting_served_ratio * running - _ROUNDING:
            return _DECODE
        return StepPlan(prefill=tuple(batch), decode=False)

    @property
    def _slots(self) -> int:
        return min(self.max_num_seqs, self.max_num_batched_tokens)  # a decode step computes a token a slot

    def _next_batch(self, view: View, budget: int) -> list[Chunk]:
        """The heads of the queue that fit: into slots, prefill, total tokens and memory."""
        size = view.block_size
        left = budget
        slots = self._slots - len(view.running)
        free = view.num_free_blocks
        total = free * size
        if self.max_batch_total_tokens is not None:
            total = self.max_batch_total_tokens - sum([most_tokens(request) for request in view.running])
        batch: list[Chunk] = []
        for request in view.waiting:
            if len(batch) == slots:
                break
            most = most_tokens(request)
            total -= most
            free -= cdiv(most, size)
            if total < 0 or free < 0 or (batch and request.input_tokens > left):
                break
            tokens = min(request.input_tokens, left)
            left -= tokens
            batch.append(Chunk(request, tokens, most))
        return batch


# 0.28 x 25 must not be more than 7.
_ROUNDING = 1e-9

_DECODE = StepPlan()
_UNTIL_CHANGE = StepPlan(holds=Holds.CHANGE)
_UNTIL_ARRIVAL = StepPlan(holds=Holds.ARRIVAL)


SYSTEM = System(
    name="Text Generation Inference",
    batch="when enough wait, or after `max_waiting_tokens` decode steps",
    prompts="whole, in a prefill that pauses the running batch",
    grant="prompt + `max_new_tokens` of all requests within `max_batch_total_tokens`",
    order="fcfs and others",
    victim="none",
    preemption="never",
)
