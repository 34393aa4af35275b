"""Sarathi-Serve (A. Agrawal et al., OSDI 2024): stall-free batches of one token budget.

The rules are those of Algorithm 3 of the paper and of sarathi/core/scheduler/sarathi_scheduler.py in its repository,
with a constant chunk size; lines are those of its revision 96f9911.
"""

from dataclasses import dataclass
from itertools import chain

from simulator.division import cdiv
from simulator.parameters import check_parameters
from simulator.plan import Chunk, Preemption, StepPlan, Traits, View
from simulator.policies.parts.free_blocks import (
    chunks_under_way,
    refuse_beyond_watermark,
    watermark_blocks,
    without_slots,
)
from simulator.policies.parts.plans import decodes_on
from simulator.policies.parts.preemption import Checked, MaxNumBatchedTokens, MaxNumSeqs, OrderName, System, Watermark
from simulator.queues.priority import rank
from simulator.request import RequestView


@dataclass(frozen=True, slots=True)
class Sarathi:
    """Decodes first, then the running partial prefill, then new prompts, within one token budget (the chunk size).

    A prompt enters only if there is room for all of it above the `watermark`, and that room is its own from then on,
    though it is computed in chunks. Every decode wants one free block, even where it takes none (`parts.decode_slots`);
    for lack of it the latest to arrive is recomputed, or with `order: priority` the least important. A victim whose
    prompt was not computed yet may enter again in the same step.

    `chunked_prefill` hands its budget out in order of admission, decodes or not, tests for the whole prompt without
    keeping its room, and has no watermark unless asked. `fastgen` preempts no decode while another can go on. Where
    memory is plenty all three fill a budget alike; their default budgets differ.

    Where Sarathi-Serve gives up, this goes on: the watermark does not count in an empty batch, as a recomputed request
    may have outgrown it. And an answer ends with its last token; there `Sequence.check_stop` counts only the tokens
    since the last preemption, so that a victim's answer grows beyond its cap.
    """

    max_num_seqs: MaxNumSeqs = 256
    max_num_batched_tokens: MaxNumBatchedTokens = 512
    watermark: Watermark = 0.01
    order: OrderName = "fcfs"

    def __post_init__(self) -> None:
        check_parameters(self)

    @property
    def traits(self) -> Traits:
        return Traits(order=self.order, takes_whole_prompt=True, asks_below_blocks=1)

    def refuses(self, request: RequestView, num_blocks: int, block_size: int) -> str | None:
        return refuse_beyond_watermark(request, num_blocks, block_size, self.watermark)

    def plan(self, view: View) -> StepPlan:
        slots = min(self.max_num_seqs, self.max_num_batched_tokens)  # a decode step computes a token a slot
        free = view.num_free_blocks - view.decode_blocks_needed
        budget = self.max_num_batched_tokens - view.num_decoding
        # Unless the last decode still finds a free block.
        victims = self._victims(view) if free < 1 else []
        chunks, free, budget = chunks_under_way(view, victims, free, budget)
        self._enter(view, victims, chunks, slots, free, budget)
        if victims or chunks:
            return StepPlan(preempt=tuple([Preemption(request) for request in victims]), prefill=tuple(chunks))
        return decodes_on(view, slots, self.order)

    def _victims(self, view: View) -> list[RequestView]:
        """Phase 1 of `_schedule` (:116): the batch is sorted by arrival, and prompts under way want no free block."""
        by_priority = self.order == "priority"
        running = sorted(view.running, key=rank if by_priority else lambda request: (request.row,))
        return without_slots(view, running, view.num_free_blocks)

    def _enter(
        self, view: View, victims: list[RequestView], chunks: list[Chunk], slots: int, free: int, budget: int
    ) -> None:
        """Phase 2 (:196): append chunks for the heads of the queue while slots, budget and blocks last.

        This step's victims come first, the last of them in front. They are not reset before the step is over: one that
        decoded has nothing to compute and stops the queue, a prompt under way begins again with a chunk of its rest.
        """
        watermark = watermark_blocks(self.watermark, view.num_blocks)
        running = len(view.running) - len(victims)
        for request in chain(reversed(victims), view.waiting):
            tokens = min(0 if request.is_decoding else request.num_tokens_to_compute, budget)
            free -= cdiv(request.num_tokens, view.block_size)
            if tokens == 0 or running >= slots or free < (watermark if running else 0):
                return
            budget -= tokens
            running += 1
            chunks.append(Chunk(request, tokens))


SYSTEM = System(
    name="Sarathi-Serve (OSDI 2024)",
    batch="every step",
    prompts="in chunks beside the decodes, within 512 tokens; decodes first, then the partial prompt, then new ones",
    grant="blocks of the prompt above a watermark",
    order="fcfs and others",
    victim="the latest admitted",
    preemption="recompute",
    checked=Checked(
        against="sarathi-serve 96f9911, scheduler, block manager and sequences; forward pass and clock are ours",
        on="300 random cases, 66,850 steps, all equal",
        uncovered="dynamic chunk sizes; pipeline stages; other orders than fcfs, which Sarathi-Serve has not",
    ),
)
