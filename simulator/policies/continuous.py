"""Continuous batching in its plain form: whole prompts first, in batches of their own, then everybody decodes."""

from __future__ import annotations

from dataclasses import dataclass

from simulator.plan import Chunk, Holds, Preemption, StepPlan, View, cdiv


@dataclass(frozen=True, slots=True)
class Continuous:
    """Iteration-level scheduling, first come first served, paged KV on demand, recompute when memory runs out.

    A prompt longer than `max_num_batched_tokens` takes several prefill steps in a row; nobody decodes meanwhile.
    """

    max_num_seqs: int = 256
    max_num_batched_tokens: int = 2048

    def plan(self, view: View) -> StepPlan:
        if view.prefilling or view.waiting:
            chunks = self._prompts(view)
            if chunks:
                return StepPlan(prefill=chunks, decode=False)
        if view.decode_blocks_needed > view.num_free_blocks:
            return self._make_room(view)
        return _UNTIL_CHANGE if view.waiting else _UNTIL_ARRIVAL

    def _prompts(self, view: View) -> tuple[Chunk, ...]:
        """Prompts for one prefill step: those under way, then the heads of the queue that fit."""
        size = view.block_size
        budget = self.max_num_batched_tokens
        slots = min(self.max_num_seqs, budget)  # a decode step computes a token a slot
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

    def _make_room(self, view: View) -> StepPlan:
        """Preempt the latest admitted until the others can decode."""
        size = view.block_size
        needed = view.decode_blocks_needed
        free = view.num_free_blocks
        victims = []
        for request in reversed(view.running):
            if needed <= free:
                break
            victims.append(Preemption(request))
            free += request.num_blocks
            needed -= request.num_computed_tokens % size == 0
        return StepPlan(preempt=tuple(victims))


_UNTIL_CHANGE = StepPlan(holds=Holds.CHANGE)
_UNTIL_ARRIVAL = StepPlan(holds=Holds.ARRIVAL)
