"""Text Generation Inference (Hugging Face): prompts in batches of their own, which make the running batch wait.

The rules are those of `batching_task` in backends/v3/src/backend.rs and of `State::next_batch` in queue.rs beside it
(TGI 3, lines of its revision with prefill chunking), for models without padding, sliding window and chunking.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from annotated_types import doc
from numpy import float32

from simulator.parameters import Count, CountOrZero, Factor, check_parameters
from simulator.plan import Chunk, Holds, StepPlan, Traits, View, cdiv
from simulator.policies.parts.parameters import MaxNumBatchedTokens, MaxNumSeqs, OrderName
from simulator.policies.parts.reservations import most_tokens, refuse_reservation
from simulator.policies.parts.system import Checked, System
from simulator.request import RequestView


@dataclass(frozen=True, slots=True)
class Tgi:
    """A new batch's prefill pauses the running one, so it comes when it is worth that, or has waited long enough.

    While requests run, the heads of the queue are prefilled together if those that fit are at least
    `waiting_served_ratio` times as many as run, rounded down. `max_waiting_tokens` steps after the last prefill, which
    is the first of these steps, any number will do. A decode step comes between two prefills, but not behind the first
    of a server that was idle: a second may follow it at once (`batching_task` looks at the queue before each decode).
    With an empty batch the heads are prefilled at once.

    A prefill computes at most `max_batch_prefill_tokens`, rounded up to whole blocks. Each request is granted blocks
    for its prompt and all but the last token of `max_tokens`, whose KV is never needed: no request is preempted, and
    none passed over. `max_batch_total_tokens` are the tokens of those blocks, of which one is kept for health checks.

    Without a value, `max_batch_prefill_tokens` is `max_num_batched_tokens`, which bounds it in any case, and
    `max_batch_total_tokens` what the KV blocks hold. `max_num_seqs` is TGI's `max_batch_size`. A prompt longer than a
    prefill, which TGI refuses, takes several in a row.
    """

    max_num_seqs: MaxNumSeqs = 256
    max_num_batched_tokens: MaxNumBatchedTokens = 2048
    waiting_served_ratio: Annotated[Factor, doc("waiting requests that fit, per running one, that start a prefill")] = (
        0.3
    )
    max_waiting_tokens: Annotated[CountOrZero, doc("steps from one prefill on until the next starts in any case")] = 20
    max_batch_prefill_tokens: Annotated[Count | None, doc("tokens of a prefill; null: max_num_batched_tokens")] = None
    max_batch_total_tokens: Annotated[Count | None, doc("KV tokens of a batch; null: the KV cache")] = None
    order: OrderName = "fcfs"

    def __post_init__(self) -> None:
        check_parameters(self)

    @property
    def traits(self) -> Traits:
        return Traits(order=self.order)

    def refuses(self, request: RequestView, num_blocks: int, block_size: int) -> str | None:
        if self.max_batch_total_tokens is not None:
            of_total = _blocks_of(self.max_batch_total_tokens, block_size)
            if cdiv(_granted(request), block_size) > min(of_total, num_blocks) == of_total:
                return (
                    f"{request.input_tokens} input tokens and max_tokens = {request.max_tokens} exceed "
                    f"max_batch_total_tokens = {self.max_batch_total_tokens}, which are {of_total} KV blocks and one "
                    "for health checks"
                )
        return refuse_reservation(request, num_blocks, block_size, _granted(request))

    def plan(self, view: View) -> StepPlan:
        if view.prefilling:  # one at most: it is longer than a prefill
            budget = self._prefill_tokens(view)
            chunks = [Chunk(request, min(request.num_tokens_to_compute, budget)) for request in view.prefilling]
            return StepPlan(prefill=tuple(chunks), decode=False, note=view.note)
        if not view.waiting:
            return _UNTIL_ARRIVAL
        running, decodes = len(view.running), view.decode_steps_since_admission
        if running and not decodes and view.note is not _FROM_IDLE:
            return _DECODE
        # The prefill was the first of `max_waiting_tokens` (backend.rs:160, :264).
        is_late = 1 + decodes >= self.max_waiting_tokens
        least = 0 if is_late else int(float32(running) * float32(self.waiting_served_ratio))  # 32 bits, as in :194
        if len(view.waiting) < least:
            return _DECODE
        batch = self._next_batch(view)
        if not batch:
            # The head finds no room until a request has finished.
            return _UNTIL_CHANGE if self.order == "fcfs" or running >= self._slots else _UNTIL_ARRIVAL
        if len(batch) < least:
            return _DECODE
        return StepPlan(prefill=tuple(batch), decode=False, note=None if running else _FROM_IDLE)

    @property
    def _slots(self) -> int:
        return min(self.max_num_seqs, self.max_num_batched_tokens)  # a decode step computes a token a slot

    def _prefill_tokens(self, view: View) -> int:
        """Tokens of a prefill, in whole blocks (queue.rs:265)."""
        if self.max_batch_prefill_tokens is None:
            return self.max_num_batched_tokens
        padded = cdiv(self.max_batch_prefill_tokens, view.block_size) * view.block_size
        return min(self.max_num_batched_tokens, padded)

    def _next_batch(self, view: View) -> list[Chunk]:
        """The heads of the queue that fit: into slots, prefill and memory."""
        size = view.block_size
        left = self._prefill_tokens(view)
        slots = self._slots - len(view.running)
        free = view.num_free_blocks
        if self.max_batch_total_tokens is not None:
            free -= max(0, view.num_blocks - _blocks_of(self.max_batch_total_tokens, size))
        batch: list[Chunk] = []
        for request in view.waiting:
            granted = _granted(request)
            free -= cdiv(granted, size)
            if len(batch) == slots or free < 0 or (batch and request.input_tokens > left):
                break
            tokens = min(request.input_tokens, left)
            left -= tokens
            batch.append(Chunk(request, tokens, granted))
        return batch


def _granted(request: RequestView) -> int:
    """Tokens that a request gets blocks for (queue.rs:316): the last of its answer is never computed."""
    return most_tokens(request) - 1


def _blocks_of(tokens: int, block_size: int) -> int:
    """Blocks for requests among so many tokens: block 0 is kept for health checks (block_allocator.rs)."""
    return tokens // block_size - 1


_FROM_IDLE = "prefilled from idle"
_DECODE = StepPlan()
_UNTIL_CHANGE = StepPlan(holds=Holds.CHANGE)
_UNTIL_ARRIVAL = StepPlan(holds=Holds.ARRIVAL)


SYSTEM = System(
    name="Text Generation Inference",
    batch="when enough wait, or after `max_waiting_tokens` decode steps",
    prompts="whole, in a prefill that pauses the running batch",
    grant="prompt + `max_new_tokens` - 1 of all requests within `max_batch_total_tokens`",
    order="fcfs and others",
    victim="none",
    preemption="never",
    checked=None,
)
