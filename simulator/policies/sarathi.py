"""Sarathi-Serve (A. Agrawal et al., OSDI 2024): stall-free batches of one token budget.

The rules are those of Algorithm 3 of the paper and of sarathi/core/scheduler/sarathi_scheduler.py in its repository,
with a constant chunk size.
"""

from __future__ import annotations

from dataclasses import dataclass

from simulator.parameters import check_parameters
from simulator.plan import Chunk, Holds, Preemption, StepPlan, Traits, View, cdiv
from simulator.policies.parts.parameters import MaxNumBatchedTokens, MaxNumSeqs, OrderName, Watermark
from simulator.policies.parts.reservations import refuse_beyond_watermark, watermark_blocks
from simulator.policies.parts.system import System
from simulator.policies.parts.victims import first_to_leave
from simulator.request import RequestView


@dataclass(frozen=True, slots=True)
class Sarathi:
    """Decodes first, then the running partial prefill, then new prompts, within one token budget (the chunk size).

    A prompt enters only if there is room for all of it above the `watermark`, and that room is its own from then on,
    though it is computed in chunks. When decoding lacks a block, the latest admitted is recomputed; with
    `order: priority`, the least important.

    `chunked_prefill` hands its budget out in order of admission, decodes or not, tests for the whole prompt without
    keeping its room, and has no watermark unless asked. `fastgen` preempts no decode: it waits. Where memory is
    plenty all three fill a budget alike; their default budgets differ.

    The watermark does not count in an empty batch: a recomputed request may have outgrown it.
    """

    max_num_seqs: MaxNumSeqs = 256
    max_num_batched_tokens: MaxNumBatchedTokens = 512
    watermark: Watermark = 0.01
    order: OrderName = "fcfs"

    def __post_init__(self) -> None:
        check_parameters(self)

    @property
    def traits(self) -> Traits:
        return Traits(order=self.order)

    def refuses(self, request: RequestView, num_blocks: int, block_size: int) -> str | None:
        return refuse_beyond_watermark(request, num_blocks, block_size, self.watermark)

    def plan(self, view: View) -> StepPlan:
        slots = min(self.max_num_seqs, self.max_num_batched_tokens)  # a decode step computes a token a slot
        size = view.block_size
        # Prompts begun own the room for all of them, though the blocks are not taken yet.
        free = view.num_free_blocks - sum([cdiv(r.num_tokens, size) - r.num_blocks for r in view.prefilling])
        if view.decode_blocks_needed > free:
            return self._make_room(view, free)
        budget = self.max_num_batched_tokens - view.num_decoding
        chunks = []
        for request in view.prefilling:
            tokens = min(request.num_tokens_to_compute, budget)
            budget -= tokens
            chunks.append(Chunk(request, tokens))
        if budget > 0 and view.waiting and len(view.running) < slots:
            self._admit(view, slots, budget, free - view.decode_blocks_needed, chunks)
        if chunks:
            return StepPlan(prefill=tuple(chunks))
        if len(view.running) >= slots or (view.waiting and self.order == "fcfs"):
            return _UNTIL_CHANGE  # no slot for an arrival, or it queues behind a head that is stuck
        return _UNTIL_ARRIVAL

    def _admit(self, view: View, slots: int, budget: int, free: int, chunks: list[Chunk]) -> None:
        """Append chunks for the heads of the queue while slots, budget and blocks last; no request is passed over."""
        watermark = watermark_blocks(self.watermark, view.num_blocks)
        running = len(view.running)
        for request in view.waiting:
            free -= cdiv(request.num_tokens, view.block_size)
            if budget == 0 or running >= slots or free < (watermark if running else 0):
                return
            tokens = min(request.num_tokens, budget)
            budget -= tokens
            running += 1
            chunks.append(Chunk(request, tokens))

    def _make_room(self, view: View, free: int) -> StepPlan:
        """Preempt victims, prompts begun too, until the remaining decodes fit; admit none."""
        size = view.block_size
        needed = view.decode_blocks_needed
        budget = self.max_num_batched_tokens - view.num_decoding
        victims: dict[RequestView, None] = {}
        for request in first_to_leave(view.running, self.order):
            if needed <= free:
                break
            victims[request] = None
            if request.is_decoding:
                free += request.num_blocks
                needed -= request.num_computed_tokens % size == 0
                budget += 1
            else:
                free += cdiv(request.num_tokens, size)
        chunks = []
        for request in view.prefilling:
            if request not in victims:
                tokens = min(request.num_tokens_to_compute, budget)
                budget -= tokens
                chunks.append(Chunk(request, tokens))
        return StepPlan(preempt=tuple([Preemption(request) for request in victims]), prefill=tuple(chunks))


_UNTIL_CHANGE = StepPlan(holds=Holds.CHANGE)
_UNTIL_ARRIVAL = StepPlan(holds=Holds.ARRIVAL)


SYSTEM = System(
    name="Sarathi-Serve (OSDI 2024)",
    batch="every step",
    prompts="in chunks beside the decodes, within 512 tokens; decodes first, then the partial prompt, then new ones",
    grant="blocks of the prompt above a watermark",
    order="fcfs and others",
    victim="the latest admitted",
    preemption="recompute",
)
