"""Static batching: a batch runs until its longest request has finished; only then does the next one form."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice
from typing import Annotated

from annotated_types import doc

from simulator.parameters import Seconds, check_parameters
from simulator.plan import Chunk, Holds, StepPlan, Traits, View, cdiv
from simulator.policies.parts.parameters import MaxNumBatchedTokens, MaxNumSeqs
from simulator.policies.parts.reservations import refuse_reservation
from simulator.policies.parts.system import System
from simulator.request import RequestView


@dataclass(frozen=True, slots=True)
class Static:
    """Request-level scheduling as in a naive `generate` loop.

    A batch of up to `max_num_seqs` forms when it is full (of slots or of memory), or `batch_timeout_s` after its
    oldest request arrived. Prompts are padded to the longest; every request reserves KV for the longest prompt and
    the largest `max_tokens` of the batch; a finished request keeps its slot and computes on. With `stream: false` the
    answers come back together when the batch ends. Prompts are computed in steps of at most
    `max_num_batched_tokens`.

    The default timeout is TorchServe's default `maxBatchDelay`, 100 ms.
    """

    max_num_seqs: MaxNumSeqs = 256
    max_num_batched_tokens: MaxNumBatchedTokens = 2048
    batch_timeout_s: Annotated[Seconds, doc("wait of the oldest request before a batch starts that is not full")] = 0.1
    stream: Annotated[bool, doc("tokens reach the client one by one; false: all at the end of the batch")] = True

    def __post_init__(self) -> None:
        check_parameters(self)

    @property
    def traits(self) -> Traits:
        return Traits(keeps_finished=True, streams=self.stream)

    def refuses(self, request: RequestView, num_blocks: int, block_size: int) -> str | None:
        return refuse_reservation(request, num_blocks, block_size)

    def plan(self, view: View) -> StepPlan:
        if view.prefilling:
            return StepPlan(prefill=self._continue_prompts(view), decode=False)
        if len(view.running):
            return _DECODE
        if not view.waiting:
            return _REST
        batch, full = self._form(view)
        deadline_s = view.waiting.head.arrival_s + self.batch_timeout_s
        if not full and view.now_s < deadline_s:
            return StepPlan(wait_until_s=deadline_s)
        return StepPlan(prefill=self._begin(batch), decode=False)

    def _form(self, view: View) -> tuple[list[RequestView], bool]:
        """The heads of the queue that one batch can hold, and whether it is then full."""
        slots = min(self.max_num_seqs, self.max_num_batched_tokens)  # a decode step computes a token a slot
        batch: list[RequestView] = []
        longest = most_output = 0
        for request in islice(view.waiting, slots):
            longest = max(longest, request.input_tokens)
            most_output = max(most_output, request.max_tokens)
            if (len(batch) + 1) * cdiv(longest + most_output, view.block_size) > view.num_blocks:
                return batch, True
            batch.append(request)
        return batch, len(batch) == slots

    def _begin(self, batch: list[RequestView]) -> tuple[Chunk, ...]:
        """Admit the whole batch; compute as many padded prompts as the budget allows."""
        longest = max(request.input_tokens for request in batch)
        reserve = longest + max(request.max_tokens for request in batch)
        budget = self.max_num_batched_tokens
        chunks = []
        for request in batch:
            tokens = min(longest, budget)
            budget -= tokens
            chunks.append(Chunk(request, tokens, reserve, longest - request.input_tokens))
        return tuple(chunks)

    def _continue_prompts(self, view: View) -> tuple[Chunk, ...]:
        """Continue the prompts, in order, as far as the budget goes."""
        budget = self.max_num_batched_tokens
        chunks = []
        for request in view.prefilling:
            if budget == 0:
                break
            tokens = min(request.num_tokens_to_compute, budget)
            budget -= tokens
            chunks.append(Chunk(request, tokens))
        return tuple(chunks)


_DECODE = StepPlan(holds=Holds.CHANGE)
_REST = StepPlan()


SYSTEM = System(
    name="naive `generate` loops, FasterTransformer",
    batch="when the whole batch has finished",
    prompts="whole, padded to the longest",
    grant="longest prompt + largest `max_tokens` of the batch, for every request",
    order="as they came",
    victim="none",
    preemption="never",
    padding="prompts to the longest; finished requests compute on",
)
