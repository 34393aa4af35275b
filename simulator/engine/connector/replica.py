"""A replica with a KV connector: it steps request by request, also where it computes nothing while copies go on.

The order of a step: plan, apply, decide what is stored, launch (with what comes before and behind the step), commit.
Steps are worked out one by one: any of them may find that a copy has ended.
"""

from collections.abc import Callable
from dataclasses import replace
from math import inf
from typing import cast

from simulator.engine.connector.aborts import ConnectedAborts
from simulator.engine.connector.blocks import Connected, ConnectedBlocks
from simulator.engine.connector.groups import ConnectedGroups
from simulator.engine.connector.offloading import Offloading
from simulator.engine.connector.plans import NO_DRAFTS, ConnectedPlans, Holding
from simulator.engine.connector.protocol import Connector
from simulator.engine.connector.request import ConnectedRequest
from simulator.engine.connector.results import ConnectedResults, ConnectedStep
from simulator.engine.in_flight import InFlight
from simulator.engine.replica_parts import ReplicaParts
from simulator.engine.speculative.log import log_planned
from simulator.engine.speculative.replica import SpeculativeReplica
from simulator.errors import InputError
from simulator.plan import StepPlan
from simulator.request import Request, RequestView
from simulator.request_state import RequestState
from simulator.speculative.acceptance import DrawnAcceptance
from simulator.speculative.speculation import Drafting, Speculation

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
