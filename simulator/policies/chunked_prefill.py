"""vLLM's v1 scheduler (0.33.0, without async scheduling): one token budget, running before waiting.

The rules are those of `Scheduler.schedule` in vllm/v1/core/sched/scheduler.py. A step hands out
`max_num_batched_tokens` first to the running requests in order of admission, then to the head of the queue.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from simulator.grants import watermark_blocks
from simulator.plan import Chunk, Holds, Preemption, StepPlan, Traits, View, cdiv
from simulator.request import RequestView
from simulator.system import System
from simulator.victims import rank


@dataclass(frozen=True, slots=True)
class ChunkedPrefill:
    """Prompts computed in chunks beside the decodes. Parameters have vLLM's names and meaning.

    `max_num_active_seqs` bounds those who run, where it is lower than the `max_num_seqs` slots there are. An adaptive
    threshold for long prompts is never below an even share of the budget.

    `watermark` is the share of the blocks that an admission must leave free while others run; `reserve_full_isl`
    admits a prompt only if all of it would fit now, though it takes only the blocks of its first chunk.
    """

    max_num_seqs: int = 256
    max_num_batched_tokens: int = 2048
    long_prefill_token_threshold: int = 0
    enable_chunked_prefill: bool = True
    watermark: float = 0.0
    reserve_full_isl: bool = True
    order: str = "fcfs"
    max_num_active_seqs: int | None = None
    long_prefill_token_threshold_adaptive: bool = False

    caches_prefixes: ClassVar[bool] = True

    @property
    def traits(self) -> Traits:
        return Traits(order=self.order)

    def __post_init__(self) -> None:
        if not 1 <= self._slots <= self.max_num_seqs:
            raise ValueError(f"max_num_active_seqs must be 1 to max_num_seqs = {self.max_num_seqs}, not {self._slots}")

    def refuses(self, request: RequestView, num_blocks: int, block_size: int) -> str | None:
        """Without chunks, a prompt beyond the budget would wait for ever."""
        if self.enable_chunked_prefill or request.input_tokens + request.max_tokens <= self.max_num_batched_tokens + 1:
            return None
        return (
            f"{request.input_tokens} input and up to {request.max_tokens} output tokens exceed "
            f"max_num_batched_tokens = {self.max_num_batched_tokens}, and enable_chunked_prefill is false"
        )

    def plan(self, view: View) -> StepPlan:
        if view.step_tokens is not None:
            return self._admit_next(view, view.step_tokens)
        threshold = self.long_prefill_token_threshold and self._threshold(view)
        budget = self.max_num_batched_tokens - view.num_decoding
        free = view.num_free_blocks - view.decode_blocks_needed
        chunks: list[Chunk] = []
        fits = budget >= 0 and free >= 0
        if fits and view.prefilling:
            # Nearly always a single prompt is under way, and it was the last to be admitted.
            last = next(reversed(view.running))
            fits = len(view.prefilling) == 1 and not last.is_decoding
            if fits and budget:
                tokens = self._cut(last.num_tokens_to_compute, threshold, budget)
                free -= cdiv(last.num_computed_tokens + tokens, view.block_size) - last.num_blocks
                fits = free >= 0
                budget -= tokens
                chunks.append(Chunk(last, tokens))
        if not fits:
            return self._hand_out(view, threshold)
        if budget > 0 and view.waiting:
            if view.caches_prefixes:
                return StepPlan(prefill=tuple(chunks), more=True)
            self._admit(view, threshold, budget, free, chunks)
        if chunks:
            return StepPlan(prefill=tuple(chunks))
        return _UNTIL_CHANGE if self._holds(view) is Holds.CHANGE else _UNTIL_ARRIVAL

    def _threshold(self, view: View) -> int:
        """Longest chunk of a prompt; 0 is no limit, which a lone request enjoys always."""
        requests = len(view.running) + len(view.waiting)
        threshold = self.long_prefill_token_threshold
        if requests <= 1 or not threshold:
            return 0
        if self.long_prefill_token_threshold_adaptive:
            return max(threshold, self.max_num_batched_tokens // requests)
        return threshold

    @property
    def _slots(self) -> int:
        return self.max_num_active_seqs or self.max_num_seqs

    @staticmethod
    def _cut(tokens: int, threshold: int, budget: int) -> int:
        if 0 < threshold < tokens:
            tokens = threshold
        return min(tokens, budget)

    def _holds(self, view: View) -> Holds:
        if len(view.running) >= self._slots or (self.order == "fcfs" and view.waiting):
            return Holds.CHANGE  # no slot for an arrival, or it queues behind a head that is stuck
        return Holds.ARRIVAL

    def _admit(self, view: View, threshold: int, budget: int, free: int, chunks: list[Chunk]) -> None:
        """Append chunks for the heads of the queue while slots, budget and blocks last: nobody is passed over."""
        size = view.block_size
        running, slots = len(view.running), self._slots
        # vLLM's count of blocks includes the null block.
        watermark = watermark_blocks(self.watermark, view.num_blocks + 1)
        for request in view.waiting:
            if budget == 0 or running >= slots:
                return
            whole = request.num_tokens_to_compute
            tokens = whole if not 0 < threshold < whole else threshold
            if tokens > budget:
                if not self.enable_chunked_prefill:
                    return
                tokens = budget
            keep = watermark if running else 0
            tested = whole if self.reserve_full_isl else tokens
            if cdiv(tested, size) + keep > free:
                return
            free -= cdiv(tokens, size)
            budget -= tokens
            running += 1
            chunks.append(Chunk(request, tokens))

    def _admit_next(self, view: View, step_tokens: int) -> StepPlan:
        """One admission, or none: what the next one finds in the prefix cache depends on this one's blocks."""
        budget = self.max_num_batched_tokens - step_tokens
        running = len(view.running)
        if budget <= 0 or running >= self._slots or not view.waiting:
            return _UNTIL_CHANGE if self._holds(view) is Holds.CHANGE else _UNTIL_ARRIVAL
        size = view.block_size
        request = view.waiting.head
        hits, unused = view.prefix_hits(request)
        whole = request.num_tokens - hits * size
        threshold = self._threshold(view)
        tokens = self._cut(whole, threshold, budget)
        if not self.enable_chunked_prefill and tokens < (threshold if 0 < threshold < whole else whole):
            return _NOTHING
        keep = watermark_blocks(self.watermark, view.num_blocks + 1) if running else 0
        tested = request.num_tokens if self.reserve_full_isl else hits * size + tokens
        if cdiv(tested, size) - hits + unused + keep > view.num_free_blocks:
            return _NOTHING  # until the next step: others may compute what this one would hit
        return StepPlan(prefill=(Chunk(request, tokens),), more=True)

    def _hand_out(self, view: View, threshold: int) -> StepPlan:
        """The general case, request by request: budget or blocks do not suffice for everybody who runs."""
        size = view.block_size
        running = list(view.running)
        scheduled: dict[RequestView, tuple[int, int]] = {}  # tokens and new blocks
        preempted: list[Preemption] = []
        budget = self.max_num_batched_tokens
        free = view.num_free_blocks
        gone: list[RequestView] = []
        index = freed = 0
        while index < len(running) and budget > 0:
            request = running[index]
            tokens = self._cut(request.num_tokens_to_compute, threshold, budget)
            needed = cdiv(request.num_computed_tokens + tokens, size) - request.num_blocks
            victim = None
            while needed > free and victim is not request:
                victim = max(running, key=rank) if self.order == "priority" else running[-1]
                running.remove(victim)
                gone.append(victim)
                freed, before = view.blocks_freed(gone), freed
                free += freed - before
                returned = 0
                if victim in scheduled:
                    returned, taken = scheduled.pop(victim)
                    budget += returned
                    free += taken
                    index -= 1
                preempted.append(Preemption(victim, scheduled_tokens=returned))
            if victim is request:
                if self.order == "priority":
                    continue
                break
            scheduled[request] = (tokens, needed)
            budget -= tokens
            free -= needed
            index += 1
        chunks = [Chunk(r, tokens) for r, (tokens, _) in scheduled.items() if not r.is_decoding]
        more = not preempted and budget > 0 and view.caches_prefixes
        if not preempted and budget > 0 and not more:
            self._admit(view, threshold, budget, free, chunks)
        return StepPlan(
            preempt=tuple(preempted),
            prefill=tuple(chunks),
            paused=tuple([r for r in running if r.is_decoding and r not in scheduled]),
            holds=self._holds(view),
            more=more,
        )


_NOTHING = StepPlan()
_UNTIL_CHANGE = StepPlan(holds=Holds.CHANGE)
_UNTIL_ARRIVAL = StepPlan(holds=Holds.ARRIVAL)


SYSTEM = System(
    name="vLLM v1 (0.33.0)",
    batch="every step",
    prompts="in chunks beside the decodes, running requests first",
    grant="the whole sequence must fit; only the first chunk's blocks are taken",
    order="fcfs, priority and others",
    victim="the latest admitted; by priority the least important",
    preemption="recompute",
)
