"""vLLM before v1: prompts in batches of their own, before everything else.

The rules are those of vllm/core/scheduler.py and vllm/core/block_manager.py of vLLM 0.6.6, for requests of one
sequence; lines are those of that release.
"""

from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Annotated, ClassVar

from annotated_types import doc

from simulator.division import cdiv
from simulator.parameters import check_parameters
from simulator.plan import Chunk, Holds, StepPlan, Traits, View
from simulator.policies.parts.free_blocks import (
    blocks_to_resume,
    chunks_under_way,
    refuse_beyond_watermark,
    returned,
    touches_block,
    watermark_blocks,
    without_slots,
)
from simulator.policies.parts.plans import decodes_on
from simulator.policies.parts.preemption import (
    Checked,
    MaxNumBatchedTokens,
    MaxNumSeqs,
    OrderName,
    SwapMode,
    System,
    Victim,
    Watermark,
    first_to_leave,
    preemptions,
)
from simulator.queues.priority import rank
from simulator.request import RequestView


@dataclass(frozen=True, slots=True)
class VllmV0:
    """Prefill and decode in separate batches, prefills first; a watermark; recompute or swap, last in first out.

    A prompt enters if `watermark` of all blocks stay free after it. Every decode wants one free block, even where it
    takes none (`parts.decode_slots`); for lack of it the latest admitted, or by `victim` others, leave: to be
    recomputed, or with `preemption_mode: swap` moved to host memory while there is room; `auto`, which vLLM has not,
    swaps where that pays. While a request is swapped no prompt is begun; the swapped return in the order in which they
    went, as soon as they fit above the watermark.

    With `order: priority` requests queue in order of arrival. In every step without a prefill the less important
    leave that keep the head of the queue from entering, and the queue is sorted; the next head enters a step later.
    With `enable_chunked_prefill` decodes, the prompt under way, returning requests and new prompts share a step's
    budget, in this order, and `order: priority` is `fcfs`, as in vLLM.

    `continuous` has neither watermark nor swap, and tests for room for the first decode instead. `chunked_prefill`,
    vLLM's v1, has no steps for prefill alone, and takes a prompt's blocks chunk by chunk.

    Where vLLM gives up, this goes on: a prompt longer than `max_num_batched_tokens` takes several prefill steps in a
    row (vLLM ignores it); the watermark does not count in an empty batch, as a recomputed request may have outgrown it;
    without room on the host, swap is recompute; by priority a request may be swapped to let the head enter, where vLLM
    stops in an assertion. A prompt computed in part is recomputed, where vLLM swaps it.
    """

    swaps: ClassVar[bool] = True

    max_num_seqs: MaxNumSeqs = 256
    max_num_batched_tokens: MaxNumBatchedTokens = 2048
    watermark: Watermark = 0.01
    preemption_mode: SwapMode = "recompute"
    order: OrderName = "fcfs"
    victim: Victim | None = None
    enable_chunked_prefill: Annotated[bool, doc("compute prompts in chunks beside the decodes")] = False

    @property
    def traits(self) -> Traits:
        order: str = self.order
        if order == "priority":
            order = "fcfs" if self.enable_chunked_prefill else "in-turn"
        return Traits(
            order=order,
            takes_whole_prompt=True,
            asks_below_blocks=1,
            skips_empty_steps=True,
            whole_prompts=not self.enable_chunked_prefill,
            pauses_decodes=not self.enable_chunked_prefill,
            displaces=order == "in-turn",
        )

    def __post_init__(self) -> None:
        check_parameters(self)

    def refuses(self, request: RequestView, num_blocks: int, block_size: int) -> str | None:
        return refuse_beyond_watermark(request, num_blocks, block_size, self.watermark)

    def plan(self, view: View) -> StepPlan:
        slots = min(self.max_num_seqs, self.max_num_batched_tokens)  # a decode step computes a token a slot
        swapped = self._swapped(view)
        if self.enable_chunked_prefill:
            return self._mixed(view, swapped, slots)
        if view.prefilling or (view.waiting and not swapped):
            chunks = self._prompts(view, slots)
            if chunks:
                return StepPlan(prefill=tuple(chunks), decode=False)
        if self.order == "priority":
            return self._by_priority(view, swapped, slots)
        free = view.num_free_blocks - view.decode_blocks_needed
        if free < 1:  # else the last decode still finds a free block
            running = [*first_to_leave(view.running, self.order, self.victim)]
            victims = without_slots(view, reversed(running), view.num_free_blocks)
            if victims:
                return StepPlan(preempt=preemptions(view, victims, self.preemption_mode))
        resume = self._resume(view, swapped, slots, free)
        if resume:
            return StepPlan(resume=resume)
        return decodes_on(view, slots, self.order)

    def _swapped(self, view: View) -> list[RequestView]:
        """The swapped requests in the order of their return: that of swap-out (:1113), else the queue's."""
        if not view.num_swapped:
            return []
        # Victims go to the front of the queue: the search is short, and finds the latest first.
        found = [*islice((request for request in view.waiting if request.is_swapped), view.num_swapped)]
        return found[::-1] if self.order in ("fcfs", "priority") else found

    def _watermark(self, view: View, running: int) -> int:
        return watermark_blocks(self.watermark, view.num_blocks) if running else 0

    def _prompts(self, view: View, slots: int) -> list[Chunk]:
        """Prompts for one prefill step: the one begun, then the heads of the queue that fit."""
        budget = self.max_num_batched_tokens
        chunks = []
        for request in view.prefilling:  # one at most: it is longer than the budget
            tokens = min(request.num_tokens_to_compute, budget)
            budget -= tokens
            chunks.append(Chunk(request, tokens))
        self._enter(view, chunks, len(view.running), slots, view.num_free_blocks, budget)
        return chunks

    def _enter(self, view: View, chunks: list[Chunk], running: int, slots: int, free: int, budget: int) -> None:
        """Append the heads of the queue that fit beside `running` requests; none is passed over."""
        for request in view.waiting:
            if request.is_swapped:
                continue
            whole = request.num_tokens
            if whole > budget and not self.enable_chunked_prefill and budget < self.max_num_batched_tokens:
                return
            needed = cdiv(whole, view.block_size)
            if running >= slots or budget == 0 or needed + self._watermark(view, running) > free:
                return
            chunks.append(Chunk(request, min(whole, budget)))
            free -= needed
            budget -= min(whole, budget)
            running += 1

    def _resume(self, view: View, swapped: list[RequestView], slots: int, free: int) -> tuple[RequestView, ...]:
        """The first of the swapped that fit, with the block of their next token, above the watermark."""
        running = len(view.running)
        back = []
        for request in swapped:
            free -= blocks_to_resume(view, request)
            if running >= slots or free < self._watermark(view, running):
                break
            back.append(request)
            running += 1
        return tuple(back)

    def _by_priority(self, view: View, swapped: list[RequestView], slots: int) -> StepPlan:
        """`_schedule_priority_preemption` (:825), then the decodes: the most important first."""
        running = sorted(view.running, key=rank)
        head = next((request for request in view.waiting if not request.is_swapped), None)
        free = view.num_free_blocks
        inverted: list[RequestView] = []  # less important than the head, and in its way
        while head is not None and running and rank(running[-1]) > rank(head):
            needed = cdiv(head.num_tokens, view.block_size) + self._watermark(view, len(running))
            if len(running) < slots and needed <= free:
                break
            inverted.append(running.pop())
            free += inverted[-1].num_blocks
        short = view.num_free_blocks - view.decode_blocks_needed < 1  # else the last decode still finds a free block
        others = without_slots(view, running, free) if short else []
        if not inverted and not others and view.note == len(view.waiting):
            # Sorted, as it was left: an arrival can change that; behind the swapped, a lack of blocks for the head.
            resume = self._resume(view, swapped, slots, free - view.decode_blocks_needed)
            return StepPlan(resume=resume, holds=Holds.STEP if swapped and head else Holds.ARRIVAL, note=view.note)
        preempt = preemptions(view, [*inverted, *others], self.preemption_mode)
        first = [request for request, swap, _ in preempt[len(inverted) :] if not swap]  # before the sorted (:862)
        resume = () if preempt else self._resume(view, swapped, slots, free - view.decode_blocks_needed)
        note = None if preempt or resume else len(view.waiting)
        return StepPlan(preempt=preempt, resume=resume, requeue=tuple(reversed(first)), note=note)

    def _mixed(self, view: View, swapped: list[RequestView], slots: int) -> StepPlan:
        """`_schedule_chunked_prefill` (:1171): decodes, the prompt under way, the swapped if none left, new prompts."""
        free = view.num_free_blocks - view.decode_blocks_needed
        budget = self.max_num_batched_tokens - view.num_decoding
        front = returned(view)
        victims = self._mixed_victims(view, front) if free < 1 else []
        chunks, free, budget = chunks_under_way(view, victims, free, budget)
        resume = () if victims else self._resume(view, swapped[: max(budget, 0)], slots, free)
        free -= sum([blocks_to_resume(view, request) for request in resume])
        running = len(view.running) - len(victims) + len(resume)
        self._enter(view, chunks, running, slots, free, budget - len(resume))
        note = (*resume, *[request for request in front if request not in victims])
        if victims or resume or chunks:
            preempt = preemptions(view, victims, self.preemption_mode)
            return StepPlan(preempt=preempt, resume=resume, prefill=tuple(chunks), note=note)
        stuck = len(view.waiting) > len(swapped) and self.traits.order == "fcfs"
        holds = Holds.CHANGE if stuck or len(view.running) >= slots else Holds.ARRIVAL
        return StepPlan(holds=holds, note=note)

    def _mixed_victims(self, view: View, front: list[RequestView]) -> list[RequestView]:
        running = [*reversed([*first_to_leave(view.running, self.traits.order, self.victim)])]
        if self.victim is None:
            running.sort(key=lambda request: front.index(request) if request in front else len(front))
        return without_slots(view, running, view.num_free_blocks, partial(touches_block, view))


SYSTEM = System(
    name="vLLM before v1",
    batch="every step",
    prompts="whole, in prefill steps of their own, before decodes; or in chunks beside them",
    grant="blocks of the prompt above a watermark of 1 %",
    order="fcfs and others; swapped requests before new ones",
    victim="the latest admitted (`order: priority`: the least important), or `victim`",
    preemption="recompute, swap or `auto`",
    checked=Checked(
        against="vLLM 0.6.6, scheduler and block manager; forward pass and clock are ours",
        on="5,250 random cases, 1,180,787 steps, all equal: recompute 1,300, swap 1,800, priority 1,150, chunks 1,000",
        uncovered=(
            "swap with chunked prefill (51 of 57 cases equal: vLLM swaps a prompt computed in part, and 3 more cases "
            "never end there); priority with swap (vLLM stops in an assertion); several sequences a request; prefix "
            "caching"
        ),
    ),
)
