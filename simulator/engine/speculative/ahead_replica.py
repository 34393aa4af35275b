"""A replica that decodes speculatively as SGLang does: prompts first, and memory taken ahead of the drafts.

In a decode step every decoding request computes its drafts behind its last token. A step with prompts verifies none:
beside them (`enable_mixed_chunk`) a request computes its last token alone. No steps are worked out ahead.
"""

from collections.abc import Sequence
from math import inf
from typing import cast

from simulator.division import cdiv
from simulator.engine.in_flight import InFlight
from simulator.engine.radix_apply import apply_to_tree
from simulator.engine.replica_parts import ReplicaParts
from simulator.engine.speculative.ahead_batch import AheadBatch, take_ahead
from simulator.engine.speculative.ahead_results import AheadResults
from simulator.engine.speculative.replica import DroppingAborts, SpeculativeReplica
from simulator.engine.speculative.request import DraftingRequest
from simulator.engine.speculative.step import Scheduled, VerifyStep
from simulator.plan import StepPlan
from simulator.request import RequestView
from simulator.request_state import RequestState, ScheduledChunk
from simulator.speculative.ahead import most_accepted, tokens_ahead, verified_tokens
from simulator.speculative.speculation import Speculation


class AheadReplica(SpeculativeReplica):
    """A `SpeculativeReplica` of a policy that takes memory ahead (`Traits.takes_ahead`)."""

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
