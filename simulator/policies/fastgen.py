"""DeepSpeed-FastGen's Dynamic SplitFuse (C. Holmes et al., arXiv 2401.08671): forward passes of one fixed size.

The rules are those of `schedule_requests` in mii/batching/ragged_batching.py of DeepSpeed-MII; the default size is
DeepSpeed's `max_ragged_batch_size`, 768 tokens.
"""

from __future__ import annotations

from collections.abc import Container, Iterable
from dataclasses import dataclass
from itertools import chain

from simulator.parameters import check_parameters
from simulator.plan import Chunk, Holds, Preemption, StepPlan, Traits, View, cdiv
from simulator.policies.parts.parameters import MaxNumBatchedTokens, MaxNumSeqs, OrderName
from simulator.policies.parts.system import System
from simulator.request import RequestView


@dataclass(frozen=True, slots=True)
class Fastgen:
    """Forward passes of a fixed number of tokens, filled to the brim: decodes, then prompts split or composed to fit.

    `max_num_batched_tokens` is that size. A long prompt is split over several passes; short ones are put together,
    and the last is cut where the pass is full. A prompt goes on, or enters, only if all that is left of it would fit
    into the free blocks now; it takes those of its chunk.

    Memory that runs out pauses requests and preempts none: a decode that finds no block sits the step out, and keeps
    what it has. Only when no request at all can go on is the KV of all of them thrown away and computed again, in
    order. Where memory is always full that is a collapse: DeepSpeed-MII warns of it, and advises fewer requests at a
    time.

    `chunked_prefill` and `sarathi` preempt the latest instead. Where memory is plenty all three fill a budget
    alike; their default budgets differ.
    """

    max_num_seqs: MaxNumSeqs = 256
    max_num_batched_tokens: MaxNumBatchedTokens = 768
    order: OrderName = "fcfs"

    def __post_init__(self) -> None:
        check_parameters(self)

    @property
    def traits(self) -> Traits:
        return Traits(order=self.order)

    def plan(self, view: View) -> StepPlan:
        slots = min(self.max_num_seqs, self.max_num_batched_tokens)  # a decode step computes a token a slot
        free = view.num_free_blocks - view.decode_blocks_needed
        stuck: tuple[RequestView, ...] = ()
        if free < 0:
            stuck = self._stuck(view)
            free = 0  # decodes before them take the last
        chunks: list[Chunk] = []
        if view.prefilling or view.waiting:
            budget = self.max_num_batched_tokens - view.num_decoding + len(stuck)
            prompts = chain(view.prefilling, view.waiting)
            chunks = self._fill(view, prompts, view.prefilling, budget, free, slots - len(view.running))
        if chunks:
            return StepPlan(prefill=tuple(chunks), paused=stuck)
        if view.running and len(stuck) == view.num_decoding:
            return self._begin_again(view, slots)
        if stuck or view.prefilling or len(view.running) >= slots or (view.waiting and self.order == "fcfs"):
            return StepPlan(paused=stuck, holds=Holds.CHANGE)  # no memory or slot for an arrival, or not its turn
        return _UNTIL_ARRIVAL

    def _stuck(self, view: View) -> tuple[RequestView, ...]:
        """The decodes without a block for their next token; blocks go to the first admitted first."""
        free = view.num_free_blocks
        stuck = []
        for request in view.running:
            if request.is_decoding and request.num_computed_tokens % view.block_size == 0:
                if free == 0:
                    stuck.append(request)
                else:
                    free -= 1
        return tuple(stuck)

    @staticmethod
    def _fill(
        view: View, prompts: Iterable[RequestView], under_way: Container[object], budget: int, free: int, slots: int
    ) -> list[Chunk]:
        """Chunks of `prompts` until the pass is full, none passed over. Those `under_way` have slot and blocks."""
        size = view.block_size
        chunks = []
        for request in prompts:
            begun = request in under_way
            computed, owned = (request.num_computed_tokens, request.num_blocks) if begun else (0, 0)
            if budget == 0 or (slots == 0 and not begun) or cdiv(request.num_tokens, size) - owned > free:
                break
            tokens = min(request.num_tokens - computed, budget)
            free -= cdiv(computed + tokens, size) - owned
            budget -= tokens
            slots -= not begun
            chunks.append(Chunk(request, tokens))
        return chunks

    def _begin_again(self, view: View, slots: int) -> StepPlan:
        """No request can go on: preempt all, and compute them again from the first on."""
        prompts = chain(view.running, view.waiting)
        return StepPlan(
            preempt=tuple([Preemption(request) for request in reversed(view.running)]),
            prefill=tuple(self._fill(view, prompts, (), self.max_num_batched_tokens, view.num_blocks, slots)),
        )


_UNTIL_ARRIVAL = StepPlan(holds=Holds.ARRIVAL)


SYSTEM = System(
    name="DeepSpeed-FastGen, Dynamic SplitFuse",
    batch="every step",
    prompts="long ones split and short ones composed, to fill a fixed forward size exactly",
    grant="blocks of the chunk",
    order="fcfs and others",
    victim="none while a request can go on; else the latest begins again",
    preemption="recompute",
)
