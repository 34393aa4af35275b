"""A replica that decodes speculatively as SGLang does: prompts first, and memory taken ahead of the drafts.

In a decode step every decoding request computes its drafts behind its last token. A step with prompts verifies none:
beside them (`enable_mixed_chunk`) a request computes its last token alone. No steps are worked out ahead.
"""

from collections import Counter
from collections.abc import Sequence
from math import inf
from typing import cast

from simulator.division import cdiv
from simulator.engine.in_flight import InFlight
from simulator.engine.itemized import DroppingAborts, SpeculativeReplica
from simulator.engine.itemized_results import VerifyResults
from simulator.engine.itemized_step import DraftingRequest, Scheduled, VerifyBatch, VerifyStep
from simulator.engine.radix_apply import apply_to_tree
from simulator.engine.replica_parts import ReplicaParts
from simulator.engine.state import ReplicaState
from simulator.plan import StepPlan
from simulator.request import RequestView
from simulator.request_state import DECODING, LEAVING, RequestState, ScheduledChunk
from simulator.speculative.ahead import most_accepted, tokens_ahead, verified_tokens
from simulator.speculative.speculation import Speculation

# The decoding requests of a replica that takes memory ahead of its drafts, as SGLang does, and that memory.
# A request has blocks for its committed tokens and so many ahead, in whole blocks, and gives none back before it
# leaves: `page_aligned_decode_alloc_lens` (python/sglang/srt/mem_cache/allocation_sizing.py:73, SGLang 0.5.23).


class AheadBatch(VerifyBatch):
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


# The results of SGLang's verify steps: the accepted run of each request, in the order of the batch.
# `SchedulerBatchResultProcessor` in python/sglang/srt/managers/scheduler_components/batch_result_processor.py
# (SGLang 0.5.23). Tokens are committed with the results, so that with overlap a plan knows those of the step before
# the running one. The result of a request that has ended, or was retracted meanwhile, is passed over.


class AheadResults(VerifyResults):
    """Takes in the results of steps, in order."""

    __slots__ = ()

    def behind(self, step: InFlight | None, plan: StepPlan, now_s: float) -> InFlight | None:
        """Let a step begin at the end of the running step. Without a step, wait for results if any are to come."""
        end_s = self.end_s
        if step is None:
            if self._in_flight is None:
                return None
            step = VerifyStep(self._state, plan, max(now_s, end_s), (), len(self._state.waiting))
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

    def next_is(self, step: VerifyStep) -> bool:
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

    def take_in(self, step: VerifyStep) -> bool:
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


# A replica that decodes speculatively as SGLang does: prompts first, and memory taken ahead of the drafts.
# In a decode step every decoding request computes its drafts behind its last token. A step with prompts verifies
# none: beside them (`enable_mixed_chunk`) a request computes its last token alone. No steps are worked out ahead.


class AheadReplica(SpeculativeReplica):
    """A `SpeculativeReplica` of a policy that takes memory ahead (`PolicyFeatures.takes_ahead`)."""

    def __init__(self, speculation: Speculation, parts: ReplicaParts) -> None:
        super().__init__(speculation, parts)
        self._results = AheadResults(self.state, self.completion, self._plans)
        if self._overlaps:
            self.late = self._results
        self.aborts = DroppingAborts(self.state, self.completion, self.late)
        self._gone = self.aborts.pending
        self._runs = None
        config = speculation.config
        self._verified, self._most_accepted = verified_tokens(config), most_accepted(config)
        self._admissions = 0  # up to the last step
        self._passes = 0 if config.method == "ngram" else config.num_speculative_tokens

    def _set_memory(self, block_size: int) -> None:
        """Let the batch take memory ahead."""
        state = self.state
        self._caps = state.caps
        self._ahead = tokens_ahead(self._config, block_size)
        batch = AheadBatch(block_size, self._ahead)
        batch.clock = state.decode_clock
        state.batch = self._batch = batch

    def _room(self, request: RequestView, num_blocks: int, block_size: int) -> int:
        """The longest answer of a request: as without drafts."""
        return request.max_tokens if self._caps is None else self._caps(request, num_blocks, block_size)

    def _refusal(self, request: RequestView, num_blocks: int, block_size: int) -> str | None:
        """The reason why a request could never be served with so many blocks: SGLang would abort it on its way."""
        outputs = self.state.requests[request.row].output_tokens
        if outputs > 1 or (self._overlaps and request.max_tokens > 1):  # it decodes, with so many tokens committed
            committed = request.input_tokens + max(0, outputs - 2)
            needed = cdiv(committed + self._ahead, block_size)
            if needed > num_blocks:
                return f"with its drafts it may need {needed} KV blocks; there are {num_blocks}"
        return None if self._refuses is None else self._refuses(request, num_blocks, block_size)

    # Plan and apply

    def begin_step(self, now_s: float) -> InFlight | None:
        """Ask for a plan and apply it; None if it neither changes nor computes anything."""
        state = self.state
        if self.changed is not None:
            self.changed(self.index)
        if state.cut is not None:
            state.settle_cut()
        self._viewer.look(now_s)
        plan = self._ask(self._view)
        if not isinstance(plan, StepPlan):
            raise state.broken(f"is {plan!r} and not a StepPlan")
        self.plan = plan
        self._view.note = plan.note
        if state.ranked is not None:
            state.ranked.settle(keep=plan.tried is not None or not self._ranks_when_tried)
        for preemption in plan.preempt:
            self._results.forget(cast(RequestState, preemption.request))
        prompts = self._apply(plan, now_s)
        decoders = state.decoders() if plan.decode else []
        if decoders:
            take_ahead(state, decoders, self._ahead)
        if not (prompts or decoders or plan.preempt):
            return None
        return self._launch_all(plan, prompts, cast("list[DraftingRequest]", decoders), now_s)

    def _apply(self, plan: StepPlan, now_s: float) -> Sequence[ScheduledChunk]:
        """Apply all of the plan but its decodes; returns the prompts that it computes."""
        state = self.state
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

    def _launch_all(
        self, plan: StepPlan, prompts: Sequence[ScheduledChunk], decoders: list[DraftingRequest], now_s: float
    ) -> VerifyStep:
        """The step of these prompts and decodes: count its tokens, and see how many drafts are accepted."""
        state = self.state
        clock = state.decode_clock
        verifies = not prompts
        tokens = self._verified if verifies else 1
        scheduled = []
        for live, chunk, _ in prompts:
            part = Scheduled(cast(DraftingRequest, live), chunk, 0, padded=False)
            part.admitted = live.admission > self._admissions
            scheduled.append(part)
        self._admissions = state.num_admitted
        for live in decoders:
            part = Scheduled(live, tokens, tokens - 1, padded=False)
            part.computed += live.in_flight_tokens
            scheduled.append(part)
        computed = sum([part.tokens for part in scheduled])
        if computed > self._budget:
            raise self._over_budget(computed)
        step = VerifyStep(state, plan, now_s, scheduled, len(state.waiting))
        step.is_odd = bool(plan.preempt)
        step.measure(len(scheduled) * (self._passes if verifies else min(1, self._passes)))
        for part in scheduled:
            self._launch_part(part)
        if decoders:
            clock.ticks += 1
        else:
            clock.prompt_steps += 1
        return step

    def _launch_part(self, part: Scheduled) -> None:
        live, state = part.live, self.state
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

    # Execute

    def execute(self, step: InFlight, due_s: float = inf) -> None:
        """Work out when the step ends. A wait for results is no step."""
        if not step.is_wait:
            super().execute(step, due_s)
