"""vLLM before v1: prompts in batches of their own, before everything else.

The rules are those of `Scheduler._schedule_default` in vllm/core/scheduler.py and of the block manager's tests
`can_allocate` and `can_swap_in`, as of vLLM 0.5, for requests of one sequence.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice
from typing import ClassVar

from simulator.parameters import check_parameters
from simulator.plan import Chunk, Holds, StepPlan, Traits, View, cdiv
from simulator.policies.parts.parameters import MaxNumBatchedTokens, MaxNumSeqs, OrderName, Watermark
from simulator.policies.parts.preemption import SwapMode
from simulator.policies.parts.reservations import refuse_beyond_watermark, watermark_blocks
from simulator.policies.parts.system import System
from simulator.policies.parts.victims import Victim, make_room
from simulator.request import RequestView


@dataclass(frozen=True, slots=True)
class VllmV0:
    """Prefill and decode in separate batches, prefills first; a watermark; recompute or swap, last in first out.

    A prompt enters if `watermark` of all blocks stay free after it. When decoding lacks a block, the latest admitted
    leave: to be recomputed, or with `preemption_mode: swap` moved to host memory while there is room. While a request
    is swapped no prompt is begun; the swapped return in the queue's order as soon as they fit above the watermark.
    With `order: priority` the least important leaves first; `victim` chooses another rule
    (`simulator.policies.parts.victims.VICTIMS`). `preemption_mode: auto`, which vLLM has not, swaps where that pays
    (`simulator.policies.parts.preemption.swap_pays`).

    `continuous` has neither watermark nor swap, and tests for room for the first decode instead. `chunked_prefill`,
    vLLM's v1, computes prompts and decodes in the same step.

    Where vLLM gives up, this goes on: a prompt longer than `max_num_batched_tokens` takes several prefill steps in a
    row (vLLM ignores it; its default budget is never below the model's context); the watermark does not count in an
    empty batch, as a recomputed request may have outgrown it; without room on the host, swap is recompute. And a
    request gives way when a decode lacks a block, where vLLM wants one free block for each decode.
    """

    swaps: ClassVar[bool] = True

    max_num_seqs: MaxNumSeqs = 256
    max_num_batched_tokens: MaxNumBatchedTokens = 2048
    watermark: Watermark = 0.01
    preemption_mode: SwapMode = "recompute"
    order: OrderName = "fcfs"
    victim: Victim | None = None

    @property
    def traits(self) -> Traits:
        return Traits(order=self.order)

    def __post_init__(self) -> None:
        check_parameters(self)

    def refuses(self, request: RequestView, num_blocks: int, block_size: int) -> str | None:
        return refuse_beyond_watermark(request, num_blocks, block_size, self.watermark)

    def plan(self, view: View) -> StepPlan:
        slots = min(self.max_num_seqs, self.max_num_batched_tokens)  # a decode step computes a token a slot
        # First come first served, they are at the front of the queue: the search is short.
        swapped = list(islice(filter(_is_swapped, view.waiting), view.num_swapped)) if view.num_swapped else []
        if view.prefilling or (view.waiting and not swapped):
            chunks = self._prompts(view, slots)
            if chunks:
                return StepPlan(prefill=chunks, decode=False)
        if view.decode_blocks_needed > view.num_free_blocks:
            return StepPlan(preempt=make_room(view, self.order, self.victim, self.preemption_mode))
        resume = self._resume(view, swapped, slots)
        if resume:
            return StepPlan(resume=resume)
        if len(view.running) >= slots or (view.waiting and self.order == "fcfs"):
            return _UNTIL_CHANGE  # no slot for an arrival, or it queues behind a head that is stuck
        return _UNTIL_ARRIVAL

    def _prompts(self, view: View, slots: int) -> tuple[Chunk, ...]:
        """Prompts for one prefill step: the one begun, then the heads of the queue that fit."""
        size = view.block_size
        watermark = watermark_blocks(self.watermark, view.num_blocks)
        budget = self.max_num_batched_tokens
        free = view.num_free_blocks
        chunks = []
        for request in view.prefilling:  # one at most: it is longer than the budget
            tokens = min(request.num_tokens_to_compute, budget)
            # Room for the whole of it, though it takes only this chunk's now.
            free -= cdiv(request.num_tokens, size) - request.num_blocks
            budget -= tokens
            chunks.append(Chunk(request, tokens))
        running = len(view.running)
        for request in view.waiting:
            whole = request.num_tokens
            if running >= slots or budget == 0 or whole > budget < self.max_num_batched_tokens:
                break
            needed = cdiv(whole, size)
            if needed + (watermark if running else 0) > free:
                break
            chunks.append(Chunk(request, min(whole, budget)))
            free -= needed
            budget -= min(whole, budget)
            running += 1
        return tuple(chunks)

    def _resume(self, view: View, swapped: list[RequestView], slots: int) -> tuple[RequestView, ...]:
        """The first of the swapped that fit, with the block of their next token, above the watermark."""
        watermark = watermark_blocks(self.watermark, view.num_blocks)
        free = view.num_free_blocks - view.decode_blocks_needed
        running = len(view.running)
        back = []
        for request in swapped:
            free -= cdiv(request.num_computed_tokens + 1, view.block_size)
            if running >= slots or free < (watermark if running else 0):
                break
            back.append(request)
            running += 1
        return tuple(back)


def _is_swapped(request: RequestView) -> bool:
    return request.is_swapped


_UNTIL_CHANGE = StepPlan(holds=Holds.CHANGE)
_UNTIL_ARRIVAL = StepPlan(holds=Holds.ARRIVAL)


SYSTEM = System(
    name="vLLM before v1",
    batch="every step",
    prompts="whole, in prefill steps of their own, before decodes",
    grant="blocks of the prompt above a watermark of 1 %",
    order="fcfs and others; swapped requests before new ones",
    victim="the latest admitted (`order: priority`: the least important), or `victim`",
    preemption="recompute, swap or `auto`",
)
