"""A replica that decodes speculatively: its steps verify drafts, and each request goes on by a number of its own.

The order of a step is that of every replica: plan, apply, execute, commit. Drafts have three places in it: as a plan is
applied, a request's drafts become part of its step; as the step is launched, its tokens count as computed, drafts too;
as its results come, the rejected ones are rolled back and new drafts are there.
"""

from collections.abc import Iterable
from math import inf
from typing import cast

from simulator.division import cdiv
from simulator.engine.aborts import Aborts
from simulator.engine.hybrid.request_groups import RequestGroups
from simulator.engine.hybrid.view import GroupsView
from simulator.engine.in_flight import InFlight
from simulator.engine.replica import Replica
from simulator.engine.replica_parts import ReplicaParts
from simulator.engine.speculative.apply import DraftedPlans
from simulator.engine.speculative.batch import VerifyBatch
from simulator.engine.speculative.log import log_planned
from simulator.engine.speculative.request import DraftingRequest
from simulator.engine.speculative.results import VerifyResults
from simulator.engine.speculative.run import Runs
from simulator.engine.speculative.step import Scheduled, VerifyRun, VerifyStep
from simulator.errors import InputError
from simulator.memory.grouped import GroupedBlocks
from simulator.memory.prefix_cache import PrefixCache
from simulator.memory.prefix_ledger import PrefixLedger
from simulator.memory.request_keys import RequestKeys
from simulator.plan import Holds, StepPlan
from simulator.policy_traits import Traits
from simulator.request import Request, RequestView
from simulator.request_state import DECODING, RequestState
from simulator.speculative.speculation import Drafting, Speculation


class DroppingAborts(Aborts):
    """Aborts where no result is counted before it is there: none has to be taken back."""

    def _dropped(self, live: RequestState, from_s: float, ends_s: Iterable[float]) -> tuple[int, float]:
        return 0, live.last_token_s


class SpeculativeReplica(Replica):
    """A `Replica` with drafts. InputError for a policy that does not plan with them."""

    def __init__(self, speculation: Speculation, parts: ReplicaParts) -> None:
        policy = type(parts.policy)
        if not Traits.of(policy).verifies_drafts:
            what = f"the policy {policy.__name__} does not plan speculative decoding"
            raise InputError(what, hint="engine.policy: vllm, or none of engine.speculative_config")
        if parts.executor.traits.wants_block_ids:
            raise InputError("a device does not decode speculatively here: leave out engine.speculative_config")
        super().__init__(parts)
        config, state = speculation.config, self.state
        self._speculation = speculation
        self._config = config
        self._set_memory(parts.block_size)
        self._plans = DraftedPlans(state, self._viewer, config, speculation.max_model_len)
        self._results = VerifyResults(state, self.completion, self._plans)
        if self._overlaps:
            self.late = self._results
        self.aborts = DroppingAborts(state, self.completion, self.late)
        self._gone = self.aborts.pending
        self._runs: Runs | None = None
        is_plain = state.adapters is None and not isinstance(parts.blocks, GroupedBlocks)
        if self._decode_run_s is not None and parts.decisions is None and is_plain:
            self._runs = Runs(state, self._plans, speculation, self._execute_step, self._budget)
        self._view.drafting = Drafting(config, speculation.max_model_len)
        if isinstance(parts.blocks, GroupedBlocks):
            self._set_groups(parts.blocks)
        self._refuses = state.refuses
        state.refuses, state.caps = self._refusal, self._room

    def _set_memory(self, block_size: int) -> None:
        """Let batch and prefix cache know of drafts."""
        state, config = self.state, self._config
        if state.waiting.meter is not None or state.tree is not None:
            what = f"the order {state.traits.order} counts decode steps, which speculative decoding does not have"
            raise InputError(what, hint="engine.order: fcfs or priority")
        batch = VerifyBatch(block_size)
        batch.clock = state.decode_clock
        state.batch = self._batch = batch
        state.enters_late = False
        ahead = config.num_hash_lookahead_tokens
        if isinstance(state.cache, (PrefixCache, PrefixLedger)):
            state.cache.keys = RequestKeys(block_size, ahead, drops_hit_block=config.drops_hit_block)
        if isinstance(state.blocks, GroupedBlocks) and state.blocks.keys is not None:
            if config.drops_hit_block or config.num_prefill_lookahead_tokens > 1:
                what = "layers that keep different things go neither with several MTP modules nor with hits that drop"
                raise InputError(f"{what} their last block", hint="engine.disable_hybrid_kv_cache_manager: true")
            state.blocks.keys = RequestKeys(state.blocks.keys.block_size, ahead)

    def _set_groups(self, blocks: GroupedBlocks) -> None:
        """Plan with a memory of several KV groups."""
        config, state, plans = self._config, self.state, self._plans
        if blocks.states is not None:
            what = "layers with a state do not go with drafts yet"
            raise InputError(what, hint="engine.disable_hybrid_kv_cache_manager: true")
        plans.groups = RequestGroups(blocks, config.num_lookahead_tokens, self._speculation.max_model_len)
        self._view.groups = GroupsView(state, plans.groups)
        self.completion.forget = blocks.end

    def capped(self, request: Request) -> Request:
        """A request that another replica prefills for this one, with as many tokens as the model's context has."""
        most = self._speculation.max_model_len - request.input_tokens
        if not 1 <= most < request.max_tokens:
            return request
        return request._replace(max_tokens=most, output_tokens=min(request.output_tokens, most))

    def new_request(self, request: Request) -> RequestState:
        """See `Replica.new_request`."""
        self._speculation.acceptance.enter(request)
        return DraftingRequest(request, self.state.decode_clock)

    def accept(self, request: Request) -> bool:
        """See `Replica.accept`."""
        enters = super().accept(request)
        if enters and self._runs is not None:
            self._runs.arrived_s.append(request.arrival_s)
        return enters

    def _room(self, request: RequestView, num_blocks: int, block_size: int) -> int:
        """The longest answer of a request: the model's longest context less its prompt."""
        return self._speculation.max_model_len - request.input_tokens

    def _refusal(self, request: RequestView, num_blocks: int, block_size: int) -> str | None:
        """The reason why a request could never be served with so many blocks: its drafts take some, too."""
        longest, config = self._speculation.max_model_len, self._config
        if request.input_tokens >= longest:
            return f"{request.input_tokens} input tokens; max_model_len is {longest}"
        whole = request.input_tokens + self.state.requests[request.row].output_tokens - 1
        ahead = config.num_lookahead_tokens + (1 + self._overlaps) * (1 + config.num_speculative_tokens)
        blocks = self.state.blocks
        if isinstance(blocks, GroupedBlocks) and (reason := blocks.refusal(min(whole + ahead, longest))) is not None:
            return reason
        needed = cdiv(min(whole + ahead, longest), block_size)
        if needed > num_blocks:
            return f"with its drafts it may need {needed} KV blocks; there are {num_blocks}"
        return None if self._refuses is None else self._refuses(request, num_blocks, block_size)

    # Plan and apply

    def begin_step(self, now_s: float) -> InFlight | None:
        """Ask for a plan and apply it; None if it neither changes nor computes anything."""
        state = self.state
        if self._runs is not None:
            self._runs.arrived_s.clear()
        if self.changed is not None:
            self.changed(self.index)
        if self.imports is not None:
            self.imports.settle(now_s)
        self._viewer.look(now_s)
        plan = self._ask(self._view)
        if not isinstance(plan, StepPlan):
            raise state.broken(f"is {plan!r} and not a StepPlan")
        self.plan = plan
        scheduled = self._plans.apply(plan, now_s)
        self._plans.check_budget(self._budget)
        if not scheduled and not plan.preempt:
            return None
        step = VerifyStep(state, plan, now_s, scheduled, len(state.waiting))
        state.decode_clock.prompt_steps += len(scheduled) > 0
        step.is_odd = bool(plan.preempt)
        step.next_drafts = self._config.drafts_of(len(scheduled))
        step.skips_drafts = self._config.can_skip_drafts and not self._plans.needs_drafts
        drafted = 0 if step.skips_drafts else step.next_drafts
        step.measure(self._propose(scheduled, drafted))
        if state.adapters is not None:
            served = [part for part in scheduled if part.live.lora is not None]
            loras = len({part.live.lora for part in served})
            step.shape = state.adapters.with_tokens(step.shape, loras, sum([part.tokens for part in served]))
        for part in scheduled:
            self._launch(part, step.next_drafts)
        return step

    def _propose(self, scheduled: list[Scheduled], drafted: int) -> int:
        """Set the drafts that each request is given at the end of the step; returns the tokens drafted for all."""
        for part in scheduled:
            live = part.live
            known = live.input_tokens + live.base_outputs + live.num_output_placeholders
            part.samples = part.computed + part.tokens >= known
            part.proposed = drafted
        if not self._config.has_varying_drafts:
            return drafted * len(scheduled)
        proposals = self._speculation.proposals
        for part in scheduled:
            if not part.samples:
                part.proposed = 0
            elif proposals is not None:
                part.proposed = min(drafted, proposals.proposed(part.live.row, part.live.sampling_steps))
        return sum([part.proposed for part in scheduled])

    def _launch(self, part: Scheduled, next_drafts: int) -> None:
        """Count the tokens of a request's step as computed, and see how many of its drafts are accepted."""
        live, state = part.live, self.state
        live.base_computed += part.tokens
        live.in_flight_tokens += part.tokens
        if not part.samples:
            return
        live.sampling_steps += 1
        if live.status is not DECODING:
            del state.prefilling[live]
            state.batch.join(live, 0)
        if part.drafts and not part.padded:
            accepted = self._speculation.acceptance.accepted(live.row, live.verify_steps)
            part.accepted = min(accepted, part.drafts)
            live.verify_steps += 1
        if self._overlaps:
            live.num_output_placeholders += 1 + part.drafts
            live.num_drafts = next_drafts

    # Execute

    def execute(self, step: InFlight, due_s: float = inf) -> None:
        """Work out when the step ends."""
        assert isinstance(step, VerifyStep)
        if not step.is_wait:
            step.ends_s = [step.start_s + self._execute_step(step)]
            part, runs = self._plans.last_part, self._runs
            holds = part.holds
            if holds is not Holds.STEP and runs is not None and (self._timeless or not step.waiting):
                step.until_arrival = holds is Holds.ARRIVAL or self._cut_by_arrivals
                before = self._results.in_flight
                if runs.can_follow(step, before):
                    runs.work_out(step, before, due_s if step.until_arrival else inf, part.hold_steps)
                    self._batch.run_used = [] if step.run is None else step.run.used
        if self._decisions is not None:
            log_planned(self._decisions, self.state, step, self._view.now_s)

    def execute_until(self, step: InFlight, start_s: float, end_s: float) -> None:
        """Execute a step whose duration is not this replica's own to work out."""
        step.start_s, step.ends_s = start_s, [end_s]
        if self._decisions is not None and not step.is_wait:
            log_planned(self._decisions, self.state, cast(VerifyStep, step), self._view.now_s)

    # Commit

    def finish_step(self, step: InFlight) -> None:
        """Commit the step, which has ended, or with asynchronous scheduling the one before it."""
        assert isinstance(step, VerifyStep)
        if step.run is not None and len(step.ends_s) > 1:
            step = self._pass_over(step, step.run)
        if not step.is_wait:
            self._record(step)
        if self._gone:
            self.aborts.end_with(step, [], 0.0)
            if self._decisions is not None:
                self._decisions.tell_aborted()
        results = self._results
        results.first_tokens = self.first_tokens
        sampled = results.next_is(step) if self._overlaps else results.take_in(step)
        if self.changed is not None:
            self.changed(self.index)
        if sampled:
            self.progress.barren_steps = 0
        else:
            self.progress.missed()

    def _record(self, step: VerifyStep) -> None:
        """Begin a row of the records. All gaps between tokens are told of as results come."""
        state = self.state
        used = state.blocks.num_blocks - state.blocks.num_free
        self._records.row(step.start_s, step.waiting, step.decode_seqs, step.shape)
        idle = len(state.running) - len(step.scheduled)
        if idle or step.is_odd or step.shape.draft_tokens:
            self._records.odd(idle, 0, 0, 0, len(step.plan.preempt), 0, 0, step.shape.draft_tokens)
        self._records.steps(step.ends_s, [used])

    def _pass_over(self, first: VerifyStep, run: VerifyRun) -> VerifyStep:
        """Commit all steps of a run but the last, and return that, launched.

        With asynchronous scheduling the results of the last but one are still to come.
        """
        runs, records, results, ends = self._runs, self._records, self._results, first.ends_s
        assert runs is not None
        steps = len(ends) - 1  # behind the first
        self.state.decode_clock.prompt_steps += steps
        planned_s = [first.planned_s(number) for number in range(1, steps + 1)]
        first.ends_s = ends[:1]
        self._record(first)
        results.first_tokens = self.first_tokens
        if self._overlaps:
            results.next_is(first)
        else:
            results.take_in(first)
        runs.take_blocks(run, steps)
        for number in range(steps - 1):
            shape = run.shapes[number]
            records.row(ends[number], runs.waiting_at(first, planned_s[number]), shape.decode_seqs, shape)
            if shape.draft_tokens:
                records.odd(0, 0, 0, 0, 0, 0, 0, shape.draft_tokens)
            records.steps([ends[number + 1]], [run.used[number]])
        passed = steps - 1 - self._overlaps
        if passed >= 0 and self._overlaps:
            results.take_in_all()
        if passed > 0:
            runs.pass_over(run, ends, passed, first.next_drafts)
        if passed >= 0 and self._overlaps:
            results.next_is(self._launch_again(first, run, steps - 2, ends, 0))
        return self._launch_again(first, run, steps - 1, ends, runs.waiting_at(first, planned_s[-1]))

    def _launch_again(
        self, first: VerifyStep, run: VerifyRun, number: int, ends: list[float], waiting: int
    ) -> VerifyStep:
        """Launch a step of a run, for which blocks have been taken."""
        start_s, drafts = ends[number], first.next_drafts
        scheduled = [self._plans.schedule_again(live, 1 + drafts, start_s) for live in run.lives]
        step = VerifyStep(self.state, _HOLDS, start_s, scheduled, waiting)
        step.next_drafts, step.ends_s = drafts, ends[number + 1 : number + 2]
        step.decode_seqs, step.shape = len(scheduled), run.shapes[number]
        self._propose(scheduled, drafts)
        for part in scheduled:
            self._launch(part, drafts)
        return step


_HOLDS = StepPlan()
