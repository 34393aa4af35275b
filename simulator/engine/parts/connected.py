"""A replica with a KV connector: it steps request by request, also where it computes nothing while copies go on.

The order of a step: plan, apply, decide what is stored, launch (with what comes before and behind the step), commit.
Steps are worked out one by one: any of them may find that a copy has ended.
"""

from collections import deque
from collections.abc import Callable, Generator
from dataclasses import replace
from math import inf
from typing import Final, cast

from simpy.events import Event

from simulator.connector import Found
from simulator.division import cdiv
from simulator.engine.clock import Clock
from simulator.engine.completion import Completion
from simulator.engine.in_flight import InFlight
from simulator.engine.intake import Intake
from simulator.engine.itemized import DroppingAborts, SpeculativeReplica
from simulator.engine.itemized_apply import DraftedPlans
from simulator.engine.itemized_results import VerifyResults
from simulator.engine.itemized_step import VerifyStep, log_planned
from simulator.engine.late_results import LateResults
from simulator.engine.parts.connected_blocks import Connected, ConnectedBlocks
from simulator.engine.parts.connected_groups import ConnectedGroups, ConnectedRequest
from simulator.engine.parts.connector import Arrivals, Connector
from simulator.engine.parts.offload import Offloading
from simulator.engine.replica_parts import ReplicaParts
from simulator.engine.state import ReplicaState
from simulator.engine.view import Viewer
from simulator.errors import InputError
from simulator.plan import Chunk, StepPlan
from simulator.queues.priority import rank
from simulator.request import Request, RequestView
from simulator.request_state import FINISHED, LOADING, WAITING, RequestState
from simulator.results.records import Status
from simulator.speculative.acceptance import DrawnAcceptance
from simulator.speculative.config import SpeculativeConfig
from simulator.speculative.speculation import Drafting, Speculation

# Plans with a connector applied: admissions may load KV, and loads that have ended are settled in their turn.

NO_DRAFTS: Final = SpeculativeConfig("ngram", 0)


class Holding:
    """Requests that hold blocks for a load: a `ConnectorView` of a replica and its connector."""

    __slots__ = ("_connector", "_requests", "by_priority", "lives", "owners")

    def __init__(self, state: ReplicaState, connector: Connector) -> None:
        self._connector = connector
        self._requests = state.requests
        self.by_priority = state.traits.order == "priority"
        self.lives: dict[ConnectedRequest, None] = {}
        self.owners: dict[int, ConnectedRequest] = {}  # by row, those that hold or held blocks

    @property
    def holding(self) -> list[ConnectedRequest]:
        """See `ConnectorView.holding`."""
        return sorted(self.lives, key=rank) if self.by_priority else list(self.lives)

    def look(self, request: RequestView, computed_tokens: int) -> Found | None:
        """See `ConnectorView.look`."""
        assert isinstance(request, ConnectedRequest)
        return self._connector.look(self._requests[request.row], request, computed_tokens)

    def is_loading(self, request: RequestView) -> bool:
        """See `ConnectorView.is_loading`."""
        return isinstance(request, ConnectedRequest) and request.is_loading

    def is_settled(self, request: RequestView) -> bool:
        """See `ConnectorView.is_settled`."""
        return isinstance(request, ConnectedRequest) and request.is_settled

    def is_fenced(self, request: RequestView) -> bool:
        """See `ConnectorView.is_fenced`."""
        return self._connector.is_fenced and isinstance(request, ConnectedRequest) and request.in_flight_tokens > 0


class ConnectedPlans(DraftedPlans):
    """Applies the plans of one replica with a connector."""

    __slots__ = ("_connector", "_held", "external")

    def __init__(
        self, state: ReplicaState, viewer: Viewer, max_model_len: int, connector: Connector, held: Holding
    ) -> None:
        super().__init__(state, viewer, NO_DRAFTS, max_model_len)
        self._connector = connector
        self._held = held
        self.external: dict[str, int] = {}  # tokens found by the connector, of the requests that the step admits

    def _next_part(self, before: StepPlan, now_s: float) -> StepPlan:
        """Ask for the next part and apply it."""
        state, viewer = self._state, self._viewer
        view = viewer.view
        view.note = before.note
        viewer.look_again(sum([part.tokens for part in self.scheduled]), (), decodes=False)
        plan: object = state.policy.plan(view)
        if not isinstance(plan, StepPlan) or plan.preempt or plan.resume or plan.paused:
            raise state.broken(f"continues with {plan!r}; later parts may only admit requests")
        if plan.more and not (plan.prefill or plan.tried):
            raise state.broken("sets more=True but admits nothing")
        for request in plan.tried or ():
            self._settle(request)
        for chunk in plan.prefill:
            self._admit(chunk, now_s)
        return plan

    def _settle(self, view: RequestView) -> None:
        """A load has ended: its blocks enter the prefix cache, or are given back if it failed."""
        live, state = view, self._state
        if not isinstance(live, ConnectedRequest) or live not in self._held.lives or live.is_loading:
            raise state.broken(f"settles {view!r}, which holds no load that has ended")
        live.is_settled = True
        if live.load_failed:
            live.load_failed = False
            state.blocks.free(live.row, live.num_blocks)
            live.base_computed = live.reserved_tokens = live.external_tokens = 0
            return
        self.enter(live, live.base_computed)
        if live.base_computed == live.num_tokens:
            live.base_computed -= 1  # so that it samples
            live.external_tokens -= 1
        _count_found(live, live.external_tokens)

    def _admit(self, chunk: Chunk, now_s: float) -> None:
        live, state, cache, groups = chunk.request, self._state, self._cache, self.groups
        held = isinstance(live, ConnectedRequest) and live in self._held.lives
        if not isinstance(live, ConnectedRequest) or not (live.status is WAITING or (held and live.is_settled)):
            raise state.broken(f"admits {live!r}, which neither waits nor has its load")
        if live.num_blocks:
            self._run(live, chunk.num_tokens, now_s)
            return
        request = state.requests[live.row]
        if groups is not None:
            hit = groups.blocks.hit(request, live.num_tokens)
            local = hit.tokens
        else:
            assert cache is not None
            hits, _ = cache.hits(request, live.num_tokens)
            local = hits * state.batch.block_size
        found = self._connector.look(request, live, local)
        if found is None or found.later == bool(chunk.num_tokens):
            raise state.broken(f"computes {chunk.num_tokens} tokens of {live.request_id}, of which it found {found}")
        live.base_computed, live.external_tokens = local + found.tokens, found.tokens
        if found.tokens:
            self.external[live.request_id] = found.tokens
        if groups is not None:
            groups.blocks.admit(groups.asked(live, live.base_computed, chunk.num_tokens, found.tokens), hit)
        else:
            assert cache is not None
            cache.take_hits(request, hits)
            self._take_found(live, local)
        live.reserved_tokens = live.base_computed
        self._held.owners[live.row] = live
        if found.later:
            self._hold(live)
        else:
            _count_found(live, found.tokens)
            self._run(live, chunk.num_tokens, now_s)
        self._connector.admitted(request, live, found, local)

    def _hold(self, live: ConnectedRequest) -> None:
        """Let a request wait for its load, outside queue and batch."""
        if live not in self._held.lives:
            self._state.waiting.remove(live)
            self._held.lives[live] = None
        live.status = LOADING
        live.is_loading, live.is_settled = True, False

    def _run(self, live: ConnectedRequest, tokens: int, now_s: float) -> None:
        state = self._state
        if live in self._held.lives:
            del self._held.lives[live]
        else:
            state.waiting.remove(live)
        state.admit(live, now_s)
        if not tokens:
            raise state.broken(f"admits request {live.request_id} and computes nothing of it")
        part = self._schedule(live, tokens, now_s)
        part.admitted = True
        self.scheduled.append(part)

    def _take_found(self, live: ConnectedRequest, local_tokens: int) -> None:
        """Take the blocks of what is to be loaded, behind those of the prefix hit; no victim gives them."""
        blocks, size = self._state.blocks, self._state.batch.block_size
        needed = cdiv(live.base_computed, size) - cdiv(local_tokens, size)
        if needed > blocks.num_free:
            what = f"loads {needed} blocks for request {live.request_id}; {blocks.num_free} are free"
            raise self._state.broken(what)
        if needed:
            blocks.allocate(live.row, needed)


def _count_found(live: ConnectedRequest, external_tokens: int) -> None:
    """Count what need not be computed, of prefix hits and loads: a part of it may have been before a preemption."""
    setbacks = live.set_back()
    local = live.base_computed - external_tokens
    setbacks.cached_tokens += min(local, live.input_tokens)
    setbacks.external_tokens += external_tokens
    found_again = min(live.base_computed, live.lost_tokens)
    setbacks.recomputed_tokens -= found_again
    setbacks.skipped_tokens += live.base_computed - found_again
    live.lost_tokens = 0


# The results of steps with a connector: blocks that a step wrote come free, then tokens, then transfers.


class ConnectedStep(VerifyStep):
    """A step that may compute nothing. `arrivals` are told with its results."""

    __slots__ = ("arrivals",)

    arrivals: Arrivals


class ConnectedResults(VerifyResults):
    """Takes in the results of steps, in order (`Scheduler.update_from_output`, vLLM 0.33)."""

    __slots__ = ("_blocks", "_connector", "_fenced", "_held", "_launched", "_now_s", "_processed")

    def __init__(
        self,
        state: ReplicaState,
        completion: Completion,
        plans: ConnectedPlans,
        connector: Connector,
        blocks: Connected,
        held: Holding,
    ) -> None:
        super().__init__(state, completion, plans)
        self._connector = connector
        self._blocks = blocks
        self._held = held
        self._now_s = 0.0
        self._launched = self._processed = 0  # steps that computed tokens
        self._fenced: deque[tuple[int, int]] = deque()  # of requests that ended: the step to wait for, and their row
        blocks.keeps = self._keeps
        self.drops_stale = connector.drops_late

    def launched(self, step: ConnectedStep) -> None:
        """A step has been given to the device."""
        self._launched += bool(step.scheduled)

    def finish(self, step: ConnectedStep, now_s: float) -> bool:
        """Take in the results of a step; returns whether there was a token among them."""
        self._now_s = now_s
        arrivals, lives = step.arrivals, self._held.owners
        if step.scheduled:
            self._processed += 1
            while self._fenced and self._fenced[0][0] <= self._processed:
                self._release(self._fenced.popleft()[1], fenced=True)
        failed = [lives[row] for row in arrivals.failed if lives[row].status is LOADING]
        sampled = self.take_in(step)
        for live in failed:
            live.load_failed = True
            if self._connector.fails_requests:
                del self._held.lives[live]
                self._blocks.free(live.row, live.num_blocks)  # they stay until the load is told of, below
                self._completion.end(live, Status.ABORTED, now_s)
        self._connector.arrived(arrivals)
        if step.record is not None:
            ids = [sorted([lives[row].request_id for row in rows]) for rows in arrivals[:3]]
            step.record |= dict(zip(("received", "failed", "sent"), ids, strict=True))
        for row in arrivals.loaded:
            lives[row].is_loading = False
            if lives[row] not in self._held.lives:
                self._release(row)
        for row in arrivals.sent:
            self._release(row)
        if step.record is not None:
            step.record["num_free_blocks_end"] = self._blocks.num_free
        return sampled

    def _release(self, row: int, *, fenced: bool = False) -> None:
        self._blocks.release(row, fenced=fenced)
        del self._held.owners[row]

    def _keeps(self, row: int) -> bool:
        """Whether the blocks of a request that ends now stay: a step or a load writes them, or they are being sent."""
        live = self._held.owners[row]
        if live.status is FINISHED and isinstance(self._blocks, ConnectedGroups):
            self._blocks.ends(live)
        if live.is_loading:
            return True
        if self._connector.is_fenced and live.in_flight_tokens:
            self._fenced.append((self._launched, row))
            return True
        return self._connector.keeps(live, self._now_s)


# Aborts of a replica with a connector: a request may leave while its load is under way.


class ConnectedAborts(DroppingAborts):
    """Takes requests out of where they wait for their loads, too."""

    __slots__ = ("_held",)

    def __init__(self, state: ReplicaState, completion: Completion, late: LateResults | None, held: Holding) -> None:
        super().__init__(state, completion, late)
        self._held = held

    def _count(self, live: RequestState) -> None:
        if live.status is not LOADING:
            super()._count(live)

    def _take_out(self, live: RequestState, now_s: float) -> bool:
        blocks = self._state.blocks
        if isinstance(blocks, ConnectedGroups) and isinstance(live, ConnectedRequest):
            blocks.ends(live)
        if live.status is not LOADING or not isinstance(live, ConnectedRequest):
            return super()._take_out(live, now_s)
        del self._held.lives[live]
        self._state.blocks.free(live.row, live.num_blocks)
        return False


# A replica with a KV connector: it steps request by request, also where it computes nothing while copies go on.
# The order of a step: plan, apply, decide what is stored, launch (with what comes before and behind the step),
# commit. Steps are worked out one by one: any of them may find that a copy has ended.

MakeConnector = Callable[[Connected, bool], Connector]
_LONGEST = 10**9  # tokens of a context: no bound


class ConnectedReplica(SpeculativeReplica):
    """A `Replica` with the connector that `make_connector` makes of its blocks and whether its steps overlap."""

    def __init__(self, make_connector: MakeConnector, parts: ReplicaParts) -> None:
        blocks = parts.blocks
        if not isinstance(blocks, (ConnectedBlocks, ConnectedGroups)):
            raise InputError(f"a replica with a KV connector needs ConnectedBlocks, not {type(blocks).__name__}")
        nothing = Speculation(NO_DRAFTS, DrawnAcceptance((0.0,), 0), _LONGEST)
        super().__init__(nothing, replace(parts, fast_forward=False))
        state = self.state
        self.connector = make_connector(blocks, self._overlaps)
        if isinstance(self.connector, Offloading):
            self.connector.replica, self.connector.copied = parts.index, parts.recorder.copies.add
        self.held = Holding(state, self.connector)
        plans = ConnectedPlans(state, self._viewer, _LONGEST, self.connector, self.held)
        self._plans = self._connected_plans = plans
        self.results = ConnectedResults(state, self.completion, plans, self.connector, blocks, self.held)
        self._results = self.results
        self.late = self.results
        self.aborts = ConnectedAborts(state, self.completion, self.results, self.held)
        self._gone = self.aborts.pending
        if isinstance(blocks, ConnectedGroups):
            self._set_groups(blocks)
        self._view.drafting = Drafting(NO_DRAFTS, _LONGEST, self.held)
        self._connected_blocks = blocks
        self._busy_until_s = 0.0  # the device, with the steps launched so far
        self._ready_s = 0.0  # the workers
        self._clock = parts.clock
        self.completion.ended = self._ended

    def new_request(self, request: Request) -> RequestState:
        """See `Replica.new_request`."""
        return ConnectedRequest(request, self.state.decode_clock)

    def _room(self, request: RequestView, num_blocks: int, block_size: int) -> int:
        return 0  # it has no say

    def _refusal(self, request: RequestView, num_blocks: int, block_size: int) -> str | None:
        blocks = self._connected_blocks
        if isinstance(blocks, ConnectedGroups):
            whole = request.input_tokens + self.state.requests[request.row].output_tokens - 1
            if (reason := blocks.refusal(whole)) is not None:
                return reason
        return None if self._refuses is None else self._refuses(request, num_blocks, block_size)

    def _ended(self, row: int) -> None:
        self.connector.ended(row)
        if row not in self._connected_blocks.kept:
            self.held.owners.pop(row, None)

    def has_requests(self) -> bool:
        """Whether the engine has to step: for its requests, for blocks that stay, or for its connector."""
        state = self.state
        waits = state.running or state.waiting or self.held.lives
        return bool(waits or self._connected_blocks.kept or self.connector.has_work)

    def abandon(self) -> None:
        """The run is over: record the unfinished requests."""
        self.completion.abandon(self.held.lives)

    # Plan and apply

    def begin_step(self, now_s: float) -> ConnectedStep:
        """Ask for a plan and apply it; the step may compute nothing."""
        state, plans = self.state, self._connected_plans
        if self.changed is not None:
            self.changed(self.index)
        self._viewer.look(now_s)
        self.connector.now_s = now_s
        plan = self._ask(self._view)
        if not isinstance(plan, StepPlan):
            raise state.broken(f"is {plan!r} and not a StepPlan")
        self.plan = plan
        plans.external.clear()
        scheduled = plans.apply(plan, now_s)
        plans.check_budget(self._budget)
        victims = [cast("ConnectedRequest", preemption.request) for preemption in plan.preempt]
        self.connector.planned([(cast("ConnectedRequest", part.live), part.tokens) for part in scheduled], victims)
        step = ConnectedStep(state, plan, now_s, scheduled, len(state.waiting) + len(self.held.lives))
        step.is_odd = bool(plan.preempt)
        step.measure(self._propose(scheduled, 0))
        for part in scheduled:
            self._launch(part, 0)
        return step

    def execute(self, step: InFlight, due_s: float = inf) -> None:
        """Launch the step: work out when it begins and ends, and begin the transfers around it."""
        assert isinstance(step, ConnectedStep)
        self._ready_s = self.connector.before(max(step.start_s, self._ready_s), self._busy_until_s)
        planned_s, step.start_s = step.start_s, max(self._ready_s, self._busy_until_s)
        self._busy_until_s = step.start_s + (self._execute_step(step) if step.scheduled else 0.0)
        step.ends_s = [self._busy_until_s]
        step.arrivals = self.connector.after(self._ready_s, self._busy_until_s)
        self.results.launched(step)
        if step.scheduled:
            self._record(step)
        if self._decisions is not None and (step.scheduled or step.plan.preempt):
            log_planned(self._decisions, self.state, step, planned_s)
            self._log_found(step)

    def _log_found(self, step: ConnectedStep) -> None:
        """Add to the step's record what its admissions found elsewhere, and whose loads go on between steps."""
        assert step.record is not None
        external = dict(self._connected_plans.external)
        scheduled = {part.live.request_id for part in step.scheduled}
        loading = [name for name in external if name not in scheduled]
        step.record |= {"external": external, "loading": loading, **self.connector.told()}

    # Commit

    def finish_step(self, step: InFlight) -> None:
        """Commit the step: its results are there."""
        assert isinstance(step, ConnectedStep)
        now_s = self._clock.now
        if self._gone:
            self.aborts.end_with(step, [], 0.0)
            if self._decisions is not None:
                self._decisions.tell_aborted()
        self.results.first_tokens = self.first_tokens
        if self.results.finish(step, now_s) or any(step.arrivals):
            self.progress.barren_steps = 0
        else:
            self.progress.missed()
        if self.changed is not None:
            self.changed(self.index)


# The loop of a replica with a connector (`EngineCore` in vllm/v1/engine/core.py, 0.33).
# It steps on while copies go on, though nothing is computed: such a step takes no time, and a short sleep follows
# it, which no arrival ends. With asynchronous scheduling up to two steps are in flight, those without tokens too.

IDLE_S: Final = 0.001  # core.py:1690


class ConnectedLoop:
    """Drives one replica with a connector; `serve` is a SimPy process."""

    def __init__(self, clock: Clock, replica: ConnectedReplica, *, fast_forward: bool) -> None:
        self.intake = Intake(clock, replica)
        self._clock = clock
        self._replica = replica
        self._fast_forward = fast_forward
        self._depth = 2 if replica.state.traits.async_scheduling else 1

    def serve(self) -> Generator[Event, object, None]:
        """Plan and launch steps, and take in their results in order, for ever."""
        clock, replica, intake = self._clock, self._replica, self.intake
        aborts, listens = replica.aborts.pending, replica.has_listener
        in_flight: deque[ConnectedStep] = deque()
        while True:
            if aborts:
                replica.aborts.end_between(clock.now)
            intake.receive(clock.now)
            computes = False
            if replica.has_requests():
                step = replica.begin_step(clock.now)
                replica.execute(step)
                in_flight.append(step)
                computes = bool(step.scheduled)
                if len(in_flight) < self._depth and (computes or replica.has_requests()):
                    if not computes:
                        yield from self._until(step, clock.now + IDLE_S)
                    continue
            elif not in_flight:
                yield intake.rest(replica.rest_until_s())
                intake.woken()
                continue
            step = in_flight.popleft()
            yield from self._until(step, max(clock.now, step.ends_s[-1]))
            replica.finish_step(step)
            if listens and (pause := intake.follow_up()) is not None:
                yield pause
            if not computes and replica.has_requests():
                yield from self._until(step, clock.now + IDLE_S)

    def _until(self, step: ConnectedStep, at_s: float) -> Generator[Event, object, None]:
        """Wait until a time that no arrival moves."""
        clock, intake = self._clock, self.intake
        if at_s > clock.now and not (self._fast_forward and clock.skip_to(at_s)):
            yield intake.watch(step, at_s)
            intake.release()
        if intake.due_s <= clock.now:
            intake.receive(clock.now)
