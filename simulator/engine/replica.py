"""One replica: the steps of a batch, from the plan to the tokens.

The engine is the only place that changes requests, blocks and the batch. Between two changes a batch only decodes;
the engine then executes as many steps at once as the plan holds, and every number comes out as it would with one
event a step. What drives a replica: `simulator.engine.loop`. The rule of which this is the fast form, and where the
parts are that want a step walked through request by request: `simulator.engine.itemized`.
"""

from collections.abc import Callable, Sequence
from itertools import accumulate
from math import inf
from typing import Final, NamedTuple

from simulator.engine.aborts import Aborts
from simulator.engine.admission import ReplicaLoad
from simulator.engine.cache_apply import Applied, grow, in_order, steps_to_hit, take_decode_blocks
from simulator.engine.clock import Clock
from simulator.engine.completion import Completion, OnEnd, Progress
from simulator.engine.decisions import DecisionLog
from simulator.engine.decode_batch import ContextStats
from simulator.engine.in_flight import InFlight, OverlappedInFlight, decodes, record_row, shape_of
from simulator.engine.late_results import LateResults, OverlapResults
from simulator.engine.parts.imports import Imports
from simulator.engine.state import ReplicaState
from simulator.engine.view import Viewer
from simulator.errors import InputError
from simulator.front_end import FirstTokens
from simulator.memory.blocks import KVBlocks
from simulator.plan import Holds, Policy, StepPlan, View
from simulator.request import Request
from simulator.request_state import RequestState, ScheduledChunk
from simulator.results.recorder import Recorder
from simulator.speculative import Loader
from simulator.timing.executor import Executor

_STEP: Final = Holds.STEP
_ARRIVAL: Final = Holds.ARRIVAL
_NONE: Final[list[RequestState]] = []
_NO_PLAN = StepPlan()
# Steps worked out at once: an arrival cuts off most of a long run, and what was cut off is wasted.
_LONGEST_RUN: Final = 256


class ReplicaParts(NamedTuple):
    """What a replica is put together from, whichever of the two engines it has.

    `number` is its place in the fleet, `group` the name of its group. `decisions` is None unless they are logged,
    `max_queued_requests` None without a bound, `on_end` None where no client listens.
    """

    number: int
    clock: Clock
    policy: Policy
    blocks: KVBlocks
    block_size: int
    executor: Executor
    recorder: Recorder
    group: str
    fast_forward: bool
    decisions: DecisionLog | None
    max_queued_requests: int | None
    on_end: OnEnd | None


class Replica:
    """A server with a batch, KV memory, a waiting queue and a policy.

    A step is `begin_step`, `execute`, and `finish_step` when it has ended. `late` holds back the results of
    asynchronous scheduling; None without it. `plan` is the last plan.
    """

    __slots__ = (
        "_ask", "_asks_below", "_before_results", "_decisions", "_decode_run_s", "_frees_late", "_gone", "_in_order",
        "_ranks_when_tried", "_skips_empty", "_slots_by_step", "_step_s", "_streams", "_unchanged", "_whole_prompt",
        "aborts", "budget", "changed", "completion", "connector", "cut_by_arrivals", "execute_step", "first_tokens",
        "has_listener", "imports", "index", "late", "load", "overlaps", "plan", "progress", "queues_steps", "records",
        "state", "timeless", "view", "viewer",
    )  # fmt: skip

    def __init__(self, parts: ReplicaParts) -> None:
        index, recorder, traits = parts.number, parts.recorder, parts.executor.traits
        records = recorder.replicas[index]
        state = ReplicaState(parts.clock, parts.policy, parts.blocks, parts.block_size, records)
        if traits.wants_block_ids and parts.blocks.by_id is None:
            what = f"the executor needs blocks with ids, which {type(parts.blocks).__name__} does not have"
            raise InputError(what, hint="engine.enable_prefix_caching: false")
        if traits.wants_context_stats:
            state.batch.context_stats = ContextStats()
        self.state = state
        self.plan = _NO_PLAN
        self.index = index
        self.load = ReplicaLoad(index, parts.group, state, state.cached_tokens)
        self.changed: Callable[[int], None] | None = None  # told the replica's number when its load may differ
        self.first_tokens: FirstTokens | None = None  # told of each, where clients see them later than the engine
        self.progress = Progress(state)
        self.completion = Completion(index, state, recorder, parts.decisions, parts.max_queued_requests, parts.on_end)
        self.has_listener = parts.on_end is not None
        self.overlaps = state.traits.async_scheduling
        results = LateResults if state.unseen is None else OverlapResults
        self.late = results(state, self.completion) if self.overlaps else None
        self.aborts = Aborts(state, self.completion, self.late)
        self._gone = self.aborts.pending
        self.connector: Loader | None = None
        self.queues_steps = False  # up to `depth` steps are in flight, empty ones too
        self.imports: Imports | None = None  # of a replica that decodes what others have prefilled
        self._ask: Callable[[View], object] = parts.policy.plan
        self.viewer = Viewer(state, traits.outlook)
        self._in_order = in_order(state, self.viewer)
        self._before_results: Callable[[], None] | None = None
        self._fill_late()
        self.view = self.viewer.view
        self.execute_step = parts.executor.execute
        self._decode_run_s = traits.decode_run_s if parts.fast_forward else None
        self.records = records
        self._decisions = parts.decisions
        self._ranks_when_tried = state.traits.ranks_when_tried
        self.timeless = state.waiting.timeless or (state.ranked is not None and self._ranks_when_tried)
        # Where clients listen, what follows from an arrival may come before the end of a run: a rejection, a timeout.
        self.cut_by_arrivals = not self.timeless or self.has_listener
        self._streams = state.traits.streams
        self.budget = state.max_num_batched_tokens
        self._slots_by_step = state.traits.slots_by_step
        self._skips_empty = state.traits.skips_empty_steps
        self._frees_late = state.traits.frees_late > 0
        self._asks_below = state.traits.asks_below_blocks
        self._whole_prompt = state.traits.takes_whole_prompt
        self._unchanged = False  # the batch is as it was in the step before
        self._step_s = 1.0  # the last decode step took so long

    def apply_with(self, applied: Applied, before_results: Callable[[], None]) -> None:
        """Let a memory apply the plans, whose `before_results` is called as each step ends."""
        self._in_order, self._before_results = applied, before_results

    def _fill_late(self) -> None:
        """Let what decoding fills enter the prefix cache late."""
        self.state.fill_late()

    def accept(self, request: Request) -> bool:
        """Put an arriving request into the queue; False if it was rejected."""
        state = self.state
        if state.caps is not None:
            request = self.allowed(request)
        live = self.new_request(request)
        state.requests[request.row] = request
        if self.has_listener:
            state.lives[request.row] = live
        if self.completion.rejects(request, live):
            return False
        state.waiting.push(live)
        if state.adapters is not None:
            state.adapters.arrived(live)
        if state.companion is not None:
            state.companion.arrived(request, live)
        if self.changed is not None:
            self.changed(self.index)
        return True

    def allowed(self, request: Request) -> Request:
        """An arriving request, with no more `max_tokens` than the policy's server allows it."""
        state = self.state
        if state.caps is None:
            return request
        most = state.caps(RequestState(request, state.decode_clock), state.blocks.num_blocks, state.batch.block_size)
        if not 1 <= most < request.max_tokens:
            return request
        return request._replace(max_tokens=most, output_tokens=min(request.output_tokens, most))

    def takes(self, request: Request) -> Request | None:
        """An arriving request as it decodes here, though its prompt is computed elsewhere; None if it was rejected."""
        request = self.allowed(request)
        return None if self.rejects(request) else request

    def rejects(self, request: Request) -> bool:
        """Reject a request, now, if it could never be served here or the queue is full; returns whether it is."""
        state = self.state
        live = self.new_request(request)
        state.requests[request.row] = request
        state.lives[request.row] = live
        if self.completion.rejects(request, live):
            return True
        del state.requests[request.row], state.lives[request.row]
        return False

    def new_request(self, request: Request) -> RequestState:
        """The engine's account of a request."""
        return RequestState(request, self.state.decode_clock)

    def hand_over_to(self, hand_over: Callable[[RequestState, int], bool]) -> None:
        """Ask `hand_over` whether a request goes on elsewhere. Its blocks then stay until `Intake.free_blocks`."""
        self.completion.hand_over = hand_over

    def tell_finished(self, finished: Callable[[], None]) -> None:
        """Call `finished` each time that requests have got their last token."""
        self.completion.finished = finished

    def start_empty(self) -> None:
        """The server starts: its prefix cache holds nothing."""
        if self.state.cache is not None:
            self.state.cache.clear()

    def abandon(self) -> None:
        """The run is over: record the unfinished requests."""
        self.completion.abandon(() if self.imports is None else self.imports)

    # Plan and apply

    def begin_step(self, now_s: float) -> InFlight | None:
        """Ask for a plan and apply it; None if it neither changes nor computes anything."""
        state = self.state
        if self._frees_late and state.late_frees.num_blocks:
            state.late_frees.next_plan(state.blocks)
        viewer = self.viewer
        if self.changed is not None:
            self.changed(self.index)
        if state.cut is not None:
            state.settle_cut()
        if self.imports is not None and self.imports.settle(now_s):
            self._unchanged = False
        viewer.look(now_s)
        plan = self._ask(self.view)
        if not isinstance(plan, StepPlan):
            raise state.broken(f"is {plan!r} and not a StepPlan")
        self.plan = plan
        preempt, resume, chunks, decode, paused, holds, _, more, self.view.note, tried, to_end, _, requeue, _ = plan
        if state.ranked is not None:
            state.ranked.settle(keep=tried is not None or not self._ranks_when_tried)
        batch = state.batch
        swapped, changes, is_odd = (0, 0), False, False
        prefill: Sequence[ScheduledChunk] = ()
        if self._in_order is not None:
            done = self._in_order(plan, now_s)
            plan, prefill, changes = done.plan, done.prefill, done.changes
            is_odd, holds, requeue = bool(preempt), plan.holds, plan.requeue
        else:
            if more:
                raise state.broken("sets more=True, which is for replicas with a prefix cache")
            if preempt or resume or paused or state.paused:
                is_odd = bool(preempt or resume)
                changes, swapped = self._move(plan, now_s)
            if chunks:
                changes = True
                prefill = [state.compute(chunk, now_s) for chunk in chunks]
            if to_end:
                state.move_to_end(to_end)
        if requeue is not None:
            state.requeue(requeue)
            holds = _STEP
        if len(prefill) > 1 and len({live for live, _, _ in prefill}) < len(prefill):
            raise state.broken("computes a request twice in one step")
        # Without asynchronous scheduling, finished requests compute only beside others.
        if decode and batch.size > (0 if self.overlaps else batch.held):
            decode_seqs, held = batch.size, batch.held
            context = batch.context + decode_seqs
            contexts = batch.next_context_stats()
            if self._in_order is None:
                needed = batch.blocks_needed()
                if needed:
                    take_decode_blocks(state, needed)
        elif changes:
            decode_seqs = held = context = 0
            contexts = 0, 0
        elif state.late_frees.num_blocks:
            return self._plan_again(now_s)
        else:
            return None
        waiting = len(state.waiting)
        if changes:
            self._unchanged = False
            shape = shape_of(prefill, decode_seqs, context, contexts)
            tokens = decode_seqs + shape.prefill_tokens
            if self._skips_empty and not tokens and not any(swapped):
                return self._plan_again(now_s)
            if self._slots_by_step and decode_seqs + shape.prefill_seqs > state.policy.max_num_seqs:
                raise state.broken(f"computes {decode_seqs + shape.prefill_seqs:,} requests, more than max_num_seqs")
        else:
            shape = decodes(decode_seqs, context, contexts)
            tokens = decode_seqs
        shape = shape if state.count_more is None else state.count_more(shape, prefill, plan)
        if tokens > self.budget:
            raise self._over_budget(tokens)
        if self.overlaps:
            step: InFlight = OverlappedInFlight(state, plan, now_s, shape, decode_seqs, waiting)
        else:
            step = InFlight(state, plan, now_s, shape, decode_seqs, waiting)
        if held:
            step.held = held
        if changes:
            step.prefill, step.is_odd = prefill, is_odd
            step.swapped_out_blocks, step.swapped_in_blocks = swapped
            return step
        # While requests wait in an order that time or service changes, every step looks at it anew.
        if self._decode_run_s is None or holds is _STEP or (self._frees_late and state.late_frees.num_blocks):
            return step
        if (self.timeless or not waiting) and (self.imports is None or not self.imports.looks_again):
            step.is_run = True
            step.until_arrival = holds is _ARRIVAL or self.cut_by_arrivals
        return step

    def _plan_again(self, now_s: float) -> InFlight | None:
        """Plan the next step at once, as this one takes no time; that step tells of its victims."""
        preempt = self.plan.preempt
        self.progress.missed()
        step = self.begin_step(now_s)
        if preempt and step is not None:
            step.preempted_before = (*preempt, *step.preempted_before)
            step.is_odd = True
        return step

    def _move(self, plan: StepPlan, now_s: float) -> tuple[bool, tuple[int, int]]:
        """Preempt, pause and resume; returns whether that changes anything, and the blocks swapped out and in."""
        state = self.state
        swapped_out = swapped_in = 0
        for preemption in plan.preempt:
            swapped_out += state.preempt(preemption, now_s)
        pauses = state.set_paused(plan.paused)
        for view in plan.resume:
            swapped_in += state.resume(view, now_s)
        return pauses or bool(plan.preempt or plan.resume), (swapped_out, swapped_in)

    def _over_budget(self, tokens: int) -> Exception:
        return self.state.broken(f"computes {tokens:,} tokens; max_num_batched_tokens is {int(self.budget):,}")

    def rest_until_s(self) -> float:
        """When the last plan, which computes nothing, wants to be asked again; infinity is at the next arrival."""
        until_s, now_s = self.plan.wait_until_s, self.view.now_s
        if until_s is None:
            return inf
        if not now_s < until_s < inf:
            raise self.state.broken(f"waits until {until_s} s, which is not after now")
        self.progress.missed()
        return until_s

    # Execute

    def execute(self, step: InFlight, due_s: float = inf) -> None:
        """Work out when the step ends; for a run of decode steps, when each does until something must change.

        `due_s` is the next arrival, as far as it is known.
        """
        if step.is_wait:
            return
        start_s = step.start_s
        if step.is_run and self._decode_run_s is not None:
            batch = self.state.batch
            steps = min(batch.steps_to_finish(), _LONGEST_RUN)
            if step.plan.hold_steps is not None:
                steps = max(1, min(steps, step.plan.hold_steps))
            if step.waiting and self.state.cache is not None:
                steps = min(steps, steps_to_hit(self.state, self.state.cache))
            if not step.until_arrival:
                due_s = inf
            if due_s != inf:
                # About as many steps as fit before the arrival; the exact end is found below.
                steps = max(1, min(steps, int((due_s - start_s) / self._step_s) + 2))
            free = self.state.blocks.num_free - self._asks_below
            steps = batch.steps_that_fit(free, steps) if free >= 0 else 1
            ends = self._decode_run_s(step.shape, steps)
            self._step_s = ends[-1] or 1.0
            ends[0] += start_s
            step.ends_s = ends = list(accumulate(ends))  # in the order in which single steps would add up
            if ends[-1] > due_s:
                del ends[step.steps_planned_by(due_s) :]
        else:
            step.ends_s = [start_s + self.execute_step(step)]
        if self._decisions is not None:
            self._decisions.decided(self.state, step, self.view.now_s)

    def execute_until(self, step: InFlight, start_s: float, end_s: float) -> None:
        """Execute a step whose duration is not this replica's own to work out."""
        step.start_s, step.ends_s = start_s, [end_s]
        if self._decisions is not None and not step.is_wait:
            self._decisions.decided(self.state, step, self.view.now_s)

    # Commit

    def finish_step(self, step: InFlight) -> None:
        """Commit the steps, which have ended: their tokens exist, and finished requests leave."""
        if self._before_results is not None:
            self._before_results()
        if step.is_wait and self.late is not None:
            self.late.settle(step, [], _NONE)
            self._unchanged = False
            return
        state = self.state
        ends = step.ends_s
        end_s = ends[-1]
        prefill, records, gone = step.prefill, self.records, self._gone
        if gone:
            before_s = state.batch.last_end_s
        # Steps that only continue the last row need none of their own.
        if prefill or not self._unchanged or step.start_s != records.end_s:
            record_row(step, records)
        if step.decode_seqs:
            sampled = True
            use = grow(state, len(ends))
            done = state.batch.advance(len(ends), end_s)
        else:
            sampled = False
            state.decode_clock.prompt_steps += step.shape.prefill_tokens > 0
            use = [state.blocks.num_blocks - state.blocks.num_free]
            done = _NONE
        records.steps(ends, use)
        if prefill:
            for live, tokens, _ in prefill:
                live.base_computed += tokens
                if live.num_tokens_to_compute == 0:
                    sampled = True
                    if live not in gone and self._sample(live, end_s):
                        done = [*done, live]
            if state.tree is not None and self.late is None:
                self.completion.finish_in_order(prefill, done, end_s)
            self._unchanged = False
        else:
            self._unchanged = sampled and not done
        if gone:
            done, changed = self.aborts.end_with(step, done, before_s)
            if changed:
                self._unchanged = False
        if self.late is not None:
            if self.late.settle(step, use, done):
                self._unchanged = False
        else:
            if done:
                self.completion.finish_all(done, end_s)
            if self._decisions is not None:
                self._decisions.committed(state, step, use, done)
        if self.changed is not None:
            self.changed(self.index)
        if sampled:
            self.progress.barren_steps = 0
        else:
            self.progress.missed()

    def _sample(self, live: RequestState, end_s: float) -> bool:
        """A completed prefill has given a token; returns whether it was the last."""
        state = self.state
        del state.prefilling[live]
        if self._whole_prompt:
            live.reserved_tokens = 0
        live.base_outputs += 1
        if state.batch.meter is not None:
            state.batch.meter.sampled(live)
        if live.first_token_s != live.first_token_s:
            live.first_token_s = end_s
            if self.first_tokens is not None:
                self.first_tokens.sampled(live.row, len(state.running), end_s, streams=self._streams)
        else:
            live.before_s = live.last_token_s
            if self._streams:
                self.records.late_gaps.add((end_s - live.last_token_s, 1, end_s))
        live.last_token_s = end_s
        tokens_left = state.tokens_left(live)
        if not tokens_left:
            return True
        state.batch.join(live, tokens_left)
        if state.fills is not None:
            state.fills.joined(live)
        return False
