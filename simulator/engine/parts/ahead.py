"""SGLang's drafts: prompts first, and memory taken ahead of the drafts.

In a decode step every decoding request computes its drafts behind its last token. A step with prompts verifies none:
beside them (`enable_mixed_chunk`) a request computes its last token alone. No steps are worked out ahead.

A request has blocks for its committed tokens and so many ahead, in whole blocks, and gives none back before it leaves:
`page_aligned_decode_alloc_lens` (python/sglang/srt/mem_cache/allocation_sizing.py:73, SGLang 0.5.23).
"""

from collections import Counter
from collections.abc import Sequence
from typing import cast

from simulator.division import cdiv
from simulator.engine.cache_apply import apply_to_tree
from simulator.engine.in_flight import InFlight
from simulator.engine.itemized import Drafter, ItemizedReplica
from simulator.engine.itemized_apply import ItemizedPlans
from simulator.engine.itemized_results import ItemizedResults
from simulator.engine.itemized_step import ItemizedBatch, ItemizedRequest, ItemizedStep, Scheduled
from simulator.engine.state import ReplicaState
from simulator.engine.view import Viewer
from simulator.plan import StepPlan
from simulator.request import Request, RequestView
from simulator.request_state import DECODING, LEAVING, RequestState, ScheduledChunk
from simulator.speculative import Speculation, SpeculativeConfig, most_accepted, tokens_ahead, verified_tokens


class AheadBatch(ItemizedBatch):
    """A decode batch whose requests own memory for `tokens_ahead` beyond their committed tokens."""

    __slots__ = ("_decoding", "tokens_ahead")

    def __init__(self, block_size: int, tokens_ahead: int) -> None:
        super().__init__(block_size)
        self.tokens_ahead = tokens_ahead
        self._decoding: dict[RequestState, None] = {}

    def join(self, live: RequestState, tokens_left: int) -> None:
        super().join(live, tokens_left)
        self._decoding[live] = None

    def leave(self, live: RequestState) -> None:
        super().leave(live)
        del self._decoding[live]

    def blocks_needed(self) -> int:
        """Blocks that the next decode step takes (`_new_tokens_required_next_decode_spec_v2`)."""
        size, ahead = self.block_size, self.tokens_ahead
        return sum([cdiv(live.base_computed + ahead, size) - live.num_blocks for live in self._decoding])


def take_ahead(state: ReplicaState, decoders: Sequence[RequestState], tokens_ahead: int) -> None:
    """Take the blocks of a decode step (`eagle_prepare_for_decode`). PolicyError if they are lacking."""
    size = state.batch.block_size
    taken, tokens = [], 0
    for live in decoders:
        owned = max(live.reserved_tokens, live.base_computed)
        room = cdiv(live.base_computed + tokens_ahead, size) * size
        tokens += room - owned
        taken.append((live, room, room // size - cdiv(owned, size)))
    needed = sum([blocks for _, _, blocks in taken])
    if needed > state.blocks.num_free:
        seqs, free = len(decoders), state.blocks.num_free
        raise state.broken(f"decodes {seqs} requests, which takes {needed} blocks; {free} are free")
    if state.tree is not None and tokens:  # with pages of several tokens one for each request (allocation.py:192)
        state.tree.make_room(cdiv(tokens, size) + (len(decoders) if size > 1 else 0))
    for live, room, blocks in taken:
        if blocks:
            state.blocks.allocate(live.row, blocks)
        live.reserved_tokens = room


class AheadResults(ItemizedResults):
    """Takes in the results of verify steps: the accepted run of each request, in the order of the batch.

    `SchedulerBatchResultProcessor` in python/sglang/srt/managers/scheduler_components/batch_result_processor.py (SGLang
    0.5.23). Tokens are committed with the results, so that with overlap a plan knows those of the step before the
    running one. The result of a request that has ended, or was retracted meanwhile, is passed over.
    """

    __slots__ = ()

    def behind(self, step: InFlight | None, plan: StepPlan, now_s: float) -> InFlight | None:
        """Let a step begin at the end of the running step. Without a step, wait for results if any are to come."""
        end_s = self.end_s
        if step is None:
            if self._in_flight is None:
                return None
            step = ItemizedStep(self._state, plan, max(now_s, end_s), (), len(self._state.waiting))
            step.is_wait = True
            step.ends_s = [step.start_s]
        elif end_s > now_s:
            step.start_s = end_s
        return step

    def forget(self, live: RequestState) -> None:
        """`live` was retracted or aborted: its result, if one is to come, will be dropped."""
        step = self._in_flight
        if step is None:
            return
        for part in step.scheduled:
            if part.live is live:
                part.live.in_flight_tokens = 0
        step.scheduled = [part for part in step.scheduled if part.live is not live]

    def next_is(self, step: ItemizedStep) -> bool:
        """The next step is in flight, or a wait for results; take in those of the one before.

        A request whose next token is its last has nothing left to plan (`_reqs_finishing_inflight`, scheduler.py:4438),
        however many tokens the step delivers.
        """
        sampled = super().next_is(step)
        state = self._state
        for part in step.scheduled:
            live = part.live
            if live.status is not DECODING or live.row not in state.requests or not part.samples:
                continue
            if live.base_outputs + 1 >= live.max_tokens:
                state.batch.leave(live)
                live.status = LEAVING
                state.num_leaving += 1
        return sampled

    def take_in(self, step: ItemizedStep) -> bool:
        """The results of a step are there; returns whether there was a token among them."""
        state, end_s = self._state, step.ends_s[-1]
        gaps: Counter[float] = Counter()
        emitted: dict[str, int] = {}
        finished: list[str] = []
        for part in step.scheduled:
            live = part.live
            if not part.samples or live.row not in state.requests:
                continue
            tokens, is_last = self._commit(part)
            emitted[live.request_id] = tokens
            self._tell(part, tokens, end_s, gaps)
            if is_last:
                finished.append(live.request_id)
                self._completion.finish_late(live, end_s)
            elif part.is_prompt and state.tree is not None:
                state.settle(live)
        if state.streams:
            for gap_s, count in gaps.items():
                state.records.late_gaps.add((gap_s, count, end_s))
        if step.record is not None:
            step.record |= {"finished": finished, "emitted": emitted}
            step.record["num_free_blocks_end"] = state.blocks.num_free
        return bool(emitted)

    def _commit(self, part: Scheduled) -> tuple[int, bool]:
        """Count the accepted run of a request; returns the tokens delivered, and whether the answer is whole.

        All of the run is committed, and what lies behind the answer's end belongs to no one (`owned_kv_len`). A token
        of a mixed step is not committed if it is the last (:373).
        """
        live = part.live
        left = self._state.tokens_left(live)
        returned = 1 + part.accepted
        tokens = min(returned, left)
        live.base_outputs += tokens
        if not part.is_prompt:
            live.in_flight_tokens -= returned
            if tokens < left:
                live.base_computed += returned
            elif part.drafts:
                live.base_computed = min(live.base_computed + returned, live.num_tokens)
        if part.drafts:
            live.verified(part.drafts, part.accepted)
        return tokens, tokens == left


class AheadPlans(ItemizedPlans):
    """Applies plans that name no decode: `take_ahead` gives each its memory. `verified` are a request's in a step."""

    __slots__ = ("_admissions", "_ranks_when_tried", "_tokens_ahead", "_verified", "results")

    def __init__(
        self, state: ReplicaState, viewer: Viewer, config: SpeculativeConfig, longest: int, tokens_ahead: int
    ) -> None:
        super().__init__(state, viewer, config, longest)
        self._verified = verified_tokens(config)
        self._tokens_ahead = tokens_ahead
        self._admissions = 0  # up to the last step
        self._ranks_when_tried = state.traits.ranks_when_tried
        self.results: AheadResults | None = None

    def apply(self, plan: StepPlan, now_s: float) -> list[Scheduled]:
        """Apply `plan`; returns what the step computes, prompts first."""
        state = self._state
        self._viewer.view.note = plan.note
        if state.ranked is not None:
            state.ranked.settle(keep=plan.tried is not None or not self._ranks_when_tried)
        for preemption in plan.preempt:
            if self.results is not None:
                self.results.forget(cast(RequestState, preemption.request))
        prompts = self._apply(plan, now_s)
        decoders = cast("list[ItemizedRequest]", state.decoders() if plan.decode else [])
        if decoders:
            take_ahead(state, decoders, self._tokens_ahead)
        tokens = 1 if prompts else self._verified
        self.scheduled = []
        for live, chunk, _ in prompts:
            part = Scheduled(cast(ItemizedRequest, live), chunk, 0, padded=False)
            part.admitted = live.admission > self._admissions
            self.scheduled.append(part)
        self._admissions = state.num_admitted
        for live in decoders:
            part = Scheduled(live, tokens, tokens - 1, padded=False)
            part.computed += live.in_flight_tokens
            self.scheduled.append(part)
        return self.scheduled

    def _apply(self, plan: StepPlan, now_s: float) -> Sequence[ScheduledChunk]:
        """Apply all of the plan but its decodes; returns the prompts that it computes."""
        state = self._state
        if state.tree is not None:
            return apply_to_tree(state, state.tree, plan._replace(decode=False), now_s).prefill
        if plan.more or plan.paused or plan.resume:
            raise state.broken("sets more, pauses or resumes, which is not for drafts that take memory ahead")
        for preemption in plan.preempt:
            state.preempt(preemption, now_s)
        prompts = [state.compute(chunk, now_s) for chunk in plan.prefill]
        if plan.to_end:
            state.move_to_end(plan.to_end)
        return prompts

    def check_budget(self, budget: float) -> None:
        """Raise PolicyError for a step beyond the budget, which does not count the slots of drafts."""
        tokens = sum([part.tokens for part in self.scheduled])
        if tokens > budget:
            raise self._state.broken(f"computes {tokens:,} tokens; max_num_batched_tokens is {int(budget):,}")


class Ahead(Drafter):
    """The drafts of a policy that takes memory ahead (`Traits.takes_ahead`)."""

    def __init__(self, speculation: Speculation) -> None:
        super().__init__(speculation.config, speculation.max_model_len)
        self._speculation = speculation
        self._most_accepted = most_accepted(speculation.config)
        self._passes = 0 if self.config.method == "ngram" else self.config.num_speculative_tokens
        self._tokens_ahead = 0

    def joins(self, replica: ItemizedReplica) -> None:
        super().joins(replica)
        replica.logs_waits = False

    def make_batch(self, block_size: int) -> ItemizedBatch:
        self._tokens_ahead = tokens_ahead(self.config, block_size)
        return AheadBatch(block_size, self._tokens_ahead)

    def plans(self) -> AheadPlans:
        return AheadPlans(self._state, self._replica.viewer, self.config, self.longest, self._tokens_ahead)

    def take_results(self, plans: ItemizedPlans) -> AheadResults:
        results = AheadResults(self._state, self._replica.completion, plans)
        cast(AheadPlans, plans).results = results
        return results

    def refusal(self, request: RequestView, num_blocks: int, block_size: int) -> str | None:
        """The reason why a request could never be served with so many blocks: SGLang would abort it on its way."""
        outputs = self._state.requests[request.row].output_tokens
        if outputs > 1 or (self._replica.overlaps and request.max_tokens > 1):  # it decodes, with so many committed
            committed = request.input_tokens + max(0, outputs - 2)
            needed = cdiv(committed + self._tokens_ahead, block_size)
            if needed > num_blocks:
                return f"with its drafts it may need {needed} KV blocks; there are {num_blocks}"
        return None

    def new_request(self, request: Request) -> None:
        self._speculation.acceptance.enter(request)

    def before_plan(self, now_s: float) -> None:
        if self._state.cut is not None:
            self._state.settle_cut()

    def propose(self, step: ItemizedStep) -> int:
        verifies = all(not part.is_prompt for part in step.scheduled)
        return len(step.scheduled) * (self._passes if verifies else min(1, self._passes))

    def launch(self, step: ItemizedStep) -> None:
        decodes = False
        for part in step.scheduled:
            decodes = decodes or not part.is_prompt
            self.launch_part(part, 0)
        if decodes:
            self._state.decode_clock.ticks += 1
        else:
            self._state.decode_clock.prompt_steps += 1

    def launch_part(self, part: Scheduled, next_drafts: int) -> None:
        live, state = part.live, self._state
        if part.is_prompt:
            live.base_computed += part.tokens
            part.samples = live.num_tokens_to_compute == 0
            if part.samples:
                del state.prefilling[live]
                state.batch.join(live, 0)
            elif state.tree is not None:
                state.cut = live
            return
        part.samples = True
        if part.drafts:
            accepted = self._speculation.acceptance.accepted(live.row, live.verify_steps)
            part.accepted = min(accepted, self._most_accepted)
            live.verify_steps += 1
        live.in_flight_tokens += 1 + part.accepted
