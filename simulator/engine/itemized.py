"""The itemized engine: each step is walked through request by request, and its parts have their places in it.

It is the rule of which `Replica` is the fast form. The order of a step is that of every replica, and stands in
`begin_step`, `execute` and `finish_step`: what comes before the plan, plan, apply, count, launch, execute, results. A
`Part` is what a feature adds at these places; `Drafter` is the part that every itemized replica has: it says what
follows a request's sampled token, which is nothing unless it drafts.
"""

import sys
from collections.abc import Collection, Sequence
from math import inf
from typing import Any, Final, Protocol

from simulator.engine.in_flight import InFlight
from simulator.engine.itemized_apply import ItemizedPlans
from simulator.engine.itemized_results import ItemizedAborts, ItemizedResults
from simulator.engine.itemized_step import ItemizedBatch, ItemizedRequest, ItemizedStep, Scheduled, log_planned
from simulator.engine.replica import Replica, ReplicaParts
from simulator.errors import InputError
from simulator.memory.block_keys import RequestKeys
from simulator.memory.grouped import GroupedBlocks
from simulator.memory.ledger import PrefixLedger
from simulator.memory.prefix_cache import PrefixCache
from simulator.plan import StepPlan
from simulator.policy_traits import Traits
from simulator.request import Request, RequestView
from simulator.request_state import DECODING, RequestState
from simulator.speculative import ConnectorView, Drafting, SpeculativeConfig

NO_DRAFTS: Final = SpeculativeConfig("ngram", 0)
_NONE: Final[Collection[RequestState]] = ()


class Stages(Protocol):
    """What computes the steps that queue up at a replica, one after the other."""

    def run(self, step: ItemizedStep, ready_s: float) -> float:
        """Set when a step starts and ends that is ready then; returns when the last stage has done it."""


class Part:
    """A feature of an itemized replica: its hooks, in the order of a step. Those that it has no use for do nothing."""

    __slots__ = ()

    def checks(self, parts: ReplicaParts) -> None:
        """Raise InputError for a replica of these parts that it cannot be a part of."""

    def joins(self, replica: "ItemizedReplica") -> None:
        """Become part of a replica. InputError for what it does not go with."""

    def new_request(self, request: Request) -> None:
        """A request comes to the replica."""

    def accepted(self, request: Request) -> None:
        """A request has entered the queue."""

    def before_plan(self, now_s: float) -> None:
        """The policy is about to be asked."""

    def scheduled(self, step: ItemizedStep) -> None:
        """The plan is applied; its tokens do not count as computed yet."""

    def ready_s(self, ready_s: float, busy_until_s: float) -> float:
        """The step is about to be queued for the device: when it is ready, at the earliest."""
        return ready_s

    def queued(self, step: ItemizedStep) -> None:
        """The device has the step, and it is known when it ends."""

    def logged(self, step: ItemizedStep) -> None:
        """The step's record for the decision log is made; add to it."""

    def before_results(self, step: ItemizedStep) -> None:
        """The step has ended, and its results are about to be taken in."""

    def results(self, step: ItemizedStep) -> bool:
        """The results are taken in; returns whether more than tokens came with them."""
        return False

    def outside(self) -> Collection[RequestState]:
        """Unfinished requests that neither wait nor run."""
        return _NONE

    def has_work(self) -> bool:
        """Whether the engine has to go on stepping, though no request waits or runs."""
        return False


class Drafter(Part):
    """What follows a request's sampled token: here nothing."""

    def __init__(self, config: SpeculativeConfig = NO_DRAFTS, longest: int = sys.maxsize) -> None:
        self.config = config
        self.longest = longest  # tokens of a context

    def joins(self, replica: "ItemizedReplica") -> None:
        self._replica = replica
        self._state = replica.state

    def make_batch(self, block_size: int) -> ItemizedBatch:
        """The batch of the replica's decoding requests, which its prefix cache knows one by one, with their drafts.

        InputError for an order that needs what the batch does not count.
        """
        state = self._state
        if state.waiting.meter is not None or state.tree is not None:
            what = f"the order {state.traits.order} counts decode steps, which speculative decoding does not have"
            raise InputError(what, hint="engine.order: fcfs or priority")
        config = self.config
        state.enters_late = False
        ahead = config.num_hash_lookahead_tokens
        if isinstance(state.cache, (PrefixCache, PrefixLedger)):
            state.cache.keys = RequestKeys(block_size, ahead, drops_hit_block=config.drops_hit_block)
        if isinstance(state.blocks, GroupedBlocks) and state.blocks.keys is not None:
            if config.drops_hit_block or config.num_prefill_lookahead_tokens > 1:
                what = "layers that keep different things go neither with several MTP modules nor with hits that drop"
                raise InputError(f"{what} their last block", hint="engine.disable_hybrid_kv_cache_manager: true")
            state.blocks.keys = RequestKeys(state.blocks.keys.block_size, ahead)
        return ItemizedBatch(block_size)

    def plans(self) -> ItemizedPlans:
        """What applies the replica's plans."""
        return ItemizedPlans(self._state, self._replica.viewer, self.config, self.longest)

    def take_results(self, plans: ItemizedPlans) -> ItemizedResults:
        """What takes in the results of the replica's steps."""
        return ItemizedResults(self._state, self._replica.completion, plans)

    def refusal(self, request: RequestView, num_blocks: int, block_size: int) -> str | None:
        """The reason why a request could never be served with so many blocks."""
        return self._replica.plans.memory.refusal(self.whole(request))

    def whole(self, request: RequestView) -> int:
        """Tokens of a request that are ever computed."""
        return request.input_tokens + self._state.requests[request.row].output_tokens - 1

    def propose(self, step: ItemizedStep) -> int:
        """Set what each request of a step samples and is given to verify; returns the tokens drafted for all."""
        for part in step.scheduled:
            live = part.live
            known = live.input_tokens + live.base_outputs + live.num_output_placeholders
            part.samples = part.computed + part.tokens >= known
        return 0

    def launch(self, step: ItemizedStep) -> None:
        """Count the tokens of a step as computed."""
        drafts = step.next_drafts
        self._state.decode_clock.prompt_steps += len(step.scheduled) > 0
        for part in step.scheduled:
            self.launch_part(part, drafts)

    def launch_part(self, part: Scheduled, next_drafts: int) -> None:
        """Count the tokens of a request's step as computed, and see how many of its drafts are accepted."""
        live, state = part.live, self._state
        live.base_computed += part.tokens
        live.in_flight_tokens += part.tokens
        if not part.samples:
            return
        live.sampling_steps += 1
        if live.status is not DECODING:
            del state.prefilling[live]
            state.batch.join(live, 0)
        if part.drafts and not part.padded:
            part.accepted = min(self.accepts(live), part.drafts)
            live.verify_steps += 1
        if self._replica.overlaps:
            live.num_output_placeholders += 1 + part.drafts
            live.num_drafts = next_drafts

    def accepts(self, live: ItemizedRequest) -> int:
        """Drafts of a request that its next verify step accepts, if it has so many."""
        return 0

    def goes_on(self, step: ItemizedStep, due_s: float) -> None:
        """Work out the steps that follow a step without a plan, if any may; `due_s` is the next arrival."""

    def pass_over(self, step: ItemizedStep) -> ItemizedStep:
        """Commit all steps of a run but the last, and return that, launched."""
        return step


def _told(parts: Sequence[Part], hook: str) -> list[Any]:
    """The hook of each part that has a use for it: the others need not be called."""
    return [getattr(part, hook) for part in parts if getattr(type(part), hook) is not getattr(Part, hook)]


class ItemizedReplica(Replica):
    """A replica with parts, of which the first drafts. InputError for a policy that does not plan request by request.

    With `queues_steps` up to `depth` steps are in flight, empty ones too, and each is given to the device as it is
    planned; between two looks for work without a token the engine sleeps for `idle_s`.
    """

    def __init__(self, parts: ReplicaParts, drafter: Drafter, features: Sequence[Part] = ()) -> None:
        for part in features:
            part.checks(parts)
        policy = type(parts.policy)
        if not Traits.of(policy).verifies_drafts:
            what = f"the policy {policy.__name__} does not plan speculative decoding"
            raise InputError(what, hint="engine.policy: vllm, or none of engine.speculative_config")
        if parts.executor.traits.wants_block_ids:
            raise InputError("a device does not decode speculatively here: leave out engine.speculative_config")
        super().__init__(parts)
        state = self.state
        self.works_out_runs = self._decode_run_s is not None and parts.decisions is None
        self.drafter = drafter
        self.parts: list[Part] = [drafter, *features]
        self.holding: ConnectorView | None = None  # a connector's
        self.stages: Stages | None = None
        self.depth = 1
        self.idle_s = 0.0
        self.logs_drafts = True
        self.logs_waits = True  # a wait for results is a plan that schedules nothing, as in vLLM
        self.any_ended = False  # a request, since the last plan
        self._busy_until_s = 0.0  # the device, with the steps that it was given
        drafter.joins(self)
        self.batch = drafter.make_batch(parts.block_size)
        self.batch.clock = state.decode_clock
        state.batch = self.batch
        self.plans = drafter.plans()
        self.taken_in = drafter.take_results(self.plans)
        if self.overlaps:
            self.late = self.taken_in
        self.dropping = ItemizedAborts(state, self.completion, self.late)
        self.aborts = self.dropping
        self._gone = self.aborts.pending
        self._refuses = state.refuses
        self._join(features)
        state.refuses = self._refusal

    def _join(self, features: Sequence[Part]) -> None:
        """Let the features become parts, and note which of them have a use for each place of a step."""
        for part in features:
            part.joins(self)
        self._new_request = _told(self.parts, "new_request")
        self._accepted = _told(self.parts, "accepted")
        self._before_plan = _told(self.parts, "before_plan")
        self._scheduled = _told(self.parts, "scheduled")
        self._ready_s = _told(self.parts, "ready_s")
        self._queued = _told(self.parts, "queued")
        self._logged = _told(self.parts, "logged")
        self._ended_step = _told(self.parts, "before_results")
        self._results = _told(self.parts, "results")
        self._outside = _told(self.parts, "outside")
        self._has_work = _told(self.parts, "has_work")
        drafter = self.drafter
        self.view.drafting = Drafting(drafter.config, drafter.longest, self.holding)

    def _fill_late(self) -> None:
        """Blocks enter the prefix cache request by request, as results come."""

    def new_request(self, request: Request) -> RequestState:
        """See `Replica.new_request`."""
        for tell in self._new_request:
            tell(request)
        return ItemizedRequest(request, self.state.decode_clock)

    def accept(self, request: Request) -> bool:
        """See `Replica.accept`."""
        enters = super().accept(request)
        if enters:
            for tell in self._accepted:
                tell(request)
        return enters

    def takes(self, request: Request) -> Request | None:
        """See `Replica.takes`. The longest context cuts what is not rejected for its length."""
        return None if self.rejects(request) else self.allowed(request)

    def _refusal(self, request: RequestView, num_blocks: int, block_size: int) -> str | None:
        """The reason why a request could never be served with so many blocks."""
        if (reason := self.drafter.refusal(request, num_blocks, block_size)) is not None:
            return reason
        return None if self._refuses is None else self._refuses(request, num_blocks, block_size)

    def abandon(self) -> None:
        """The run is over: record the unfinished requests."""
        others = [] if self.imports is None else list(self.imports)
        for outside in self._outside:
            others += outside()
        self.completion.abandon(others)

    # Plan and apply

    def begin_step(self, now_s: float) -> InFlight | None:
        """Ask for a plan and apply it; None if it neither changes nor computes anything, unless steps queue up."""
        state = self.state
        for tell in self._before_plan:
            tell(now_s)
        self.any_ended = False
        if self.changed is not None:
            self.changed(self.index)
        if self.imports is not None:
            self.imports.settle(now_s)
        self.viewer.look(now_s)
        plan = self._ask(self.view)
        if not isinstance(plan, StepPlan):
            raise state.broken(f"is {plan!r} and not a StepPlan")
        self.plan = plan
        scheduled = self.plans.apply(plan, now_s)
        self.plans.check_budget(self.budget)
        if not scheduled and not plan.preempt and not self.queues_steps:
            return None
        waiting = len(state.waiting)
        for outside in self._outside:
            waiting += len(outside())
        step = ItemizedStep(state, plan, now_s, scheduled, waiting)
        step.is_odd, step.is_wait = bool(plan.preempt), not (scheduled or plan.preempt)
        for tell in self._scheduled:
            tell(step)
        step.measure(self.drafter.propose(step))
        if state.adapters is not None:
            served = [part for part in scheduled if part.live.lora is not None]
            loras = len({part.live.lora for part in served})
            step.shape = state.adapters.with_tokens(step.shape, loras, sum([part.tokens for part in served]))
        self.drafter.launch(step)
        return step

    # Execute

    def execute(self, step: InFlight, due_s: float = inf) -> None:
        """Work out when the step ends."""
        assert isinstance(step, ItemizedStep)
        if self.queues_steps:
            self._queue(step)
            return
        if not step.is_wait:
            step.ends_s = [step.start_s + self.execute_step(step)]
            self.drafter.goes_on(step, due_s)
        elif not self.logs_waits:
            return
        self._log(step)

    def execute_until(self, step: InFlight, start_s: float, end_s: float) -> None:
        """Execute a step whose duration is not this replica's own to work out."""
        assert isinstance(step, ItemizedStep)
        step.start_s, step.ends_s = start_s, [end_s]
        if not step.is_wait:
            self._log(step)

    def _queue(self, step: ItemizedStep) -> None:
        """Give the step to the device behind those that it has."""
        ready_s = step.start_s
        for ready in self._ready_s:
            ready_s = ready(ready_s, self._busy_until_s)
        if self.stages is not None:
            self._busy_until_s = self.stages.run(step, ready_s)
        else:
            step.start_s = max(ready_s, self._busy_until_s)
            self._busy_until_s = step.start_s + (self.execute_step(step) if step.scheduled else 0.0)
            step.ends_s = [self._busy_until_s]
        for tell in self._queued:
            tell(step)
        if step.scheduled or step.plan.preempt:
            self._log(step)
        if not step.is_wait:
            self.record(step)

    def _log(self, step: ItemizedStep) -> None:
        if self._decisions is not None:
            log_planned(self._decisions, self.state, step, self.view.now_s, drafts=self.logs_drafts)
            for tell in self._logged:
                tell(step)

    # Commit

    def finish_step(self, step: InFlight) -> None:
        """Commit the step, which has ended, or with asynchronous scheduling the one before it."""
        assert isinstance(step, ItemizedStep)
        if step.run is not None and len(step.ends_s) > 1:
            step = self.drafter.pass_over(step)
        if not (step.is_wait or self.queues_steps):
            self.record(step)
        self.end_aborted(step.look_s() if self.stages is None else step.ends_s[-1])
        for tell in self._ended_step:
            tell(step)
        results, requests = self.taken_in, len(self.state.requests)
        results.first_tokens = self.first_tokens
        moved = results.next_is(step) if self.overlaps and not self.queues_steps else results.take_in(step)
        for came in self._results:
            moved = came(step) or moved
        self.any_ended = self.any_ended or len(self.state.requests) < requests
        if self.changed is not None:
            self.changed(self.index)
        if moved:
            self.progress.barren_steps = 0
        else:
            self.progress.missed()

    def end_aborted(self, now_s: float) -> None:
        """End the requests whose clients have given up."""
        if self._gone:
            requests = len(self.state.requests)
            self.aborts.end_between(now_s)
            self.any_ended = self.any_ended or len(self.state.requests) < requests

    def has_work(self, seen_s: float) -> bool:
        """Whether the engine has to step: for requests that came by `seen_s`, or for one of its parts."""
        state = self.state
        if state.running:
            return True
        for has_work in self._has_work:
            if has_work():
                return True
        return any(live.arrival_s <= seen_s for live in state.waiting)

    def record(self, step: ItemizedStep) -> None:
        """Begin a row of the records. All gaps between tokens are told of as results come.

        Rows follow one another: a step that begins on a first stage lasts from the end of the one before it.
        """
        state, records, start_s = self.state, self.records, step.start_s
        if self.stages is not None:
            start_s = max(start_s, records.end_s)
        used = state.blocks.num_blocks - state.blocks.num_free
        records.row(start_s, step.waiting, step.decode_seqs, step.shape)
        idle = len(state.running) - len(step.scheduled)
        if idle or step.is_odd or step.shape.draft_tokens:
            records.odd(idle, 0, 0, 0, len(step.plan.preempt), 0, 0, step.shape.draft_tokens)
        records.steps(step.ends_s, [used])
