"""Continuous batching in its plain form: whole prompts first, in batches of their own, then all requests decode."""

from __future__ import annotations

from dataclasses import dataclass

from simulator.parameters import check_parameters
from simulator.plan import Chunk, Holds, StepPlan, Traits, View, cdiv
from simulator.policies.parts.parameters import MaxNumBatchedTokens, MaxNumSeqs, OrderName
from simulator.policies.parts.system import System
from simulator.policies.parts.victims import make_room


@dataclass(frozen=True, slots=True)
class Continuous:
    """Iteration-level scheduling, first come first served, paged KV on demand, recompute when memory runs out.

    A prompt longer than `max_num_batched_tokens` takes several prefill steps in a row, without decodes between them.
    When memory runs out, the latest admitted request is preempted; with `order: priority`, the least important.
    """

    max_num_seqs: MaxNumSeqs = 256
    max_num_batched_tokens: MaxNumBatchedTokens = 2048
    order: OrderName = "fcfs"

    def __post_init__(self) -> None:
        check_parameters(self)

    @property
    def traits(self) -> Traits:
        return Traits(order=self.order)

    def plan(self, view: View) -> StepPlan:
        if view.prefilling or view.waiting:
            chunks = self._prompts(view)
            if chunks:
                return StepPlan(prefill=chunks, decode=False)
        if view.decode_blocks_needed > view.num_free_blocks:
            return StepPlan(preempt=make_room(view, self.order))
        if len(view.running) >= self._slots() or (view.waiting and self.order == "fcfs"):
            return _UNTIL_CHANGE  # no slot for an arrival, or it queues behind a head that is stuck
        return _UNTIL_ARRIVAL

    def _slots(self) -> int:
        return min(self.max_num_seqs, self.max_num_batched_tokens)  # a decode step computes a token a slot

    def _prompts(self, view: View) -> tuple[Chunk, ...]:
        """Prompts for one prefill step: those begun, then the heads of the queue that fit."""
        size = view.block_size
        budget = self.max_num_batched_tokens
        slots = self._slots()
        free = view.num_free_blocks
        chunks = []
        for request in view.prefilling:
            tokens = min(request.num_tokens_to_compute, budget)
            # Room for the whole of it, though it takes only this chunk's now.
            free -= cdiv(request.num_tokens, size) - request.num_blocks
            budget -= tokens
            if tokens:
                chunks.append(Chunk(request, tokens))
        running = len(view.running)
        for request in view.waiting:
            tokens = request.num_tokens
            if running >= slots or tokens > budget < self.max_num_batched_tokens:
                break
            # A prompt that left no room for its first decode step would be preempted at once.
            needed = cdiv(tokens + 1 if running else tokens, size)
            if needed > free or budget == 0:
                break
            chunks.append(Chunk(request, min(tokens, budget)))
            free -= needed
            budget -= min(tokens, budget)
            running += 1
        return tuple(chunks)


_UNTIL_CHANGE = StepPlan(holds=Holds.CHANGE)
_UNTIL_ARRIVAL = StepPlan(holds=Holds.ARRIVAL)


SYSTEM = System(
    name="continuous batching in its plain form",
    batch="every step",
    prompts="whole, in prefill steps of their own, before decodes",
    grant="blocks of the prompt and one token",
    order="fcfs, or any timeless or timed order",
    victim="the latest admitted",
    preemption="recompute",
)
