"""One replica: plan, apply, execute, commit, and nothing between.

The engine is the only place that changes requests, blocks and the batch. Between two changes a batch only decodes;
the engine then executes as many steps at once as the plan holds, and cuts the run short at the next step's end when
an arrival could alter the plan. Every number comes out as it would with one event a step.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Generator, Iterator, Sequence
from itertools import accumulate
from math import inf

from simpy.events import Event

from simulator.engine.async_scheduling import AsyncScheduling
from simulator.engine.cache_apply import apply_in_order
from simulator.engine.clock import Clock
from simulator.engine.completion import Completion
from simulator.engine.context_stats import ContextStats
from simulator.engine.decisions import DecisionLog
from simulator.engine.in_flight import InFlight, record_row, shape_of
from simulator.engine.state import ReplicaState, ScheduledChunk
from simulator.engine.view import ReplicaView
from simulator.memory.blocks import KVBlocks
from simulator.plan import Holds, Policy, StepPlan
from simulator.request import Request
from simulator.request_state import RequestState
from simulator.results.recorder import Recorder
from simulator.timing.cost import StepShape
from simulator.timing.executor import Executor

# A policy that goes on but gets nowhere is stopped: no prompt of a real model takes so many steps.
MAX_STEPS_WITHOUT_A_TOKEN = 100_000


_STEP, _ARRIVAL = Holds.STEP, Holds.ARRIVAL
_NOBODY: list[RequestState] = []
_NOTHING = StepShape(0, 0)

# Steps worked out at once: an arrival cuts off most of a long run, and what was cut off is wasted.
_LONGEST_RUN = 256


class Replica:
    """A server with a batch, KV memory, a waiting queue and a policy. `serve` is its SimPy process."""

    def __init__(
        self,
        index: int,
        clock: Clock,
        policy: Policy,
        blocks: KVBlocks,
        block_size: int,
        executor: Executor,
        recorder: Recorder,
        *,
        fast_forward: bool = True,
        decisions: DecisionLog | None = None,
    ) -> None:
        self.index = index
        self.state = ReplicaState(clock, policy, blocks, block_size, recorder.replicas[index].requeues)
        self._clock = clock
        self._executor = executor
        if (attach := getattr(executor, "attach", None)) is not None:
            attach(self.state)
        if getattr(executor, "wants_context_stats", False):
            self.state.batch.spread = ContextStats()
        self._fast_forward = fast_forward and executor.foresees
        self._records = recorder.replicas[index]
        self._streams = self.state.traits.streams
        self._timeless = self.state.waiting.timeless
        self._decisions = decisions
        self._completion = Completion(index, self.state, recorder)
        self._overlaps = self.state.traits.async_scheduling
        self._overlap = AsyncScheduling(self.state, self._completion)
        self._view = ReplicaView(self.state, getattr(executor, "outlook", None))
        self._flight: InFlight | None = None
        self._pause: Event | None = None  # what `serve` waits for
        self._unchanged = False  # the batch is as it was in the step before
        self._barren_steps = 0
        self._ahead: Iterator[Request] = iter(())  # arrivals that are read ahead
        self._due: Request | None = None  # the next of them
        self._due_s = inf
        self._step_s = 1.0  # the last decode step took so long
        self._busy_until_s = 0.0  # where steps overlap, the last one planned ends

    @property
    def num_unfinished(self) -> int:
        """Requests waiting or running here."""
        return len(self.state.waiting) + len(self.state.running)

    def abandon(self) -> None:
        """The run is over: record those who have not finished."""
        self._completion.abandon()

    # Arrivals

    def submit(self, request: Request) -> None:
        """`request` arrives now: it queues, or is rejected because it could never be served here."""
        live = RequestState(request, self.state.batch)
        if self._completion.refuses(live):
            return
        self.state.waiting.push(live)
        flight = self._flight
        if flight is None:
            if self._pause is not None:  # resting: look again, once everybody of this instant is here
                self._pause = self._clock.move(self._pause, max(self._clock.now, self._busy_until_s))
                self._barren_steps = 0
        elif flight.until_arrival:
            self._cut(flight, self._clock.now)

    def read_ahead(self, requests: Iterator[Request]) -> None:
        """Let these arrive, in order, in their own time: for a replica that has nobody to share them with.

        It need not be told of each by an event, and works out no step beyond an arrival that matters.
        """
        self._ahead = requests
        self._next_due()

    def _next_due(self) -> None:
        self._due = next(self._ahead, None)
        self._due_s = inf if self._due is None else self._due.arrival_s

    def _receive(self, now_s: float) -> None:
        """Those read ahead who have arrived by now."""
        while self._due is not None and self._due_s <= now_s:
            self.submit(self._due)
            self._next_due()

    def _cut(self, flight: InFlight, at_s: float) -> None:
        """End the run in flight with the last step that is planned before an arrival at `at_s` is seen."""
        ends = flight.ends_s
        steps = flight.steps_until(at_s) if self._overlaps else bisect_left(ends, at_s) + 1
        if steps < len(ends):
            del ends[steps:]
            assert self._pause is not None
            self._pause = self._clock.move(self._pause, flight.look_s() if self._overlaps else ends[-1])

    # The process

    def serve(self) -> Generator[Event, object, None]:
        """Plan, apply, execute, commit, for ever; at rest while there is nothing to do."""
        clock = self._clock
        view = self._view
        overlaps = self._overlaps
        plan_step = self.state.policy.plan
        self._receive(clock.now)
        while True:
            now_s = clock.now
            view.look(now_s)
            plan = plan_step(view)
            if plan.__class__ is not StepPlan:
                raise self.state.broken(f"is {plan!r}, not a StepPlan")
            flight = self._apply(plan, now_s)
            if overlaps:
                flight = self._behind(flight, plan, now_s)
            if flight is None:
                self._pause = self._rest(plan)
                yield self._pause
                self._pause = None
                if self._due_s <= clock.now:
                    self._barren_steps = 0
                    self._receive(clock.now)
            else:
                self._execute(flight)
                look_s = flight.look_s() if overlaps else flight.ends_s[-1]
                # Where nothing else happens until then, there is no need to wait for it.
                if not (self._fast_forward and clock.skip_to(look_s)):
                    self._flight = flight
                    self._pause = clock.at(look_s)
                    yield self._pause
                    self._flight = self._pause = None
                if self._due_s <= look_s:
                    self._receive(look_s)
                self._commit(flight)

    def _behind(self, flight: InFlight | None, plan: StepPlan, now_s: float) -> InFlight | None:
        """The flight begins when the step in execution has ended; if there is none, the replica may have to wait so.

        It then is a step of nothing that takes no time: all who run wait for results.
        """
        state = self.state
        busy_s = self._busy_until_s
        late = bool(self._overlap.done)
        if flight is None:
            if not (state.running or state.waiting) or not (busy_s > now_s or late):
                if self._decisions is not None:
                    self._decisions.rests(state)
                return None
            waiting = len(state.waiting)
            flight = InFlight(plan, now_s, _NOTHING, 0, 0, (), False, False, False, False, waiting, 0, 0, [])
        if busy_s > now_s:
            flight.start_s = busy_s
        if late:  # the next plan is another
            flight.is_run = flight.until_arrival = False
        return flight

    def _rest(self, plan: StepPlan) -> Event:
        """The event to wait for when nothing is to be done: an arrival, which may move it, or the time planned.

        A step that is still in execution has to end first.
        """
        until_s = plan.wait_until_s
        if until_s is None:
            if self._due is None:
                return self._clock.event()
            return self._clock.at(max(self._due_s, self._busy_until_s))
        if not until_s > self._clock.now:
            raise self.state.broken(f"waits until {until_s} s, which is not after now")
        self._watch_progress()
        return self._clock.at(max(min(until_s, self._due_s), self._busy_until_s))

    def _apply(self, plan: StepPlan, now_s: float) -> InFlight | None:
        """Carry out the plan's changes; None if it neither changes nor computes anything."""
        preempt, resume, chunks, decode, paused, holds, _, more, self._view.note = plan
        state = self.state
        batch = state.batch
        swapped_out = swapped_in = 0
        changes = is_odd = taken = False
        prefill: Sequence[ScheduledChunk] = ()
        if state.cache is not None:
            done = apply_in_order(state, state.cache, state.policy, self._view, plan, now_s)
            plan, prefill, changes, taken = done.plan, done.prefill, done.changes, done.taken
            is_odd, holds = bool(preempt), plan.holds
        else:
            if more:
                raise state.broken("asks for more, which only a prefix cache is a reason for")
            if preempt or resume or paused or state.paused:
                changes, is_odd, swapped_out, swapped_in = self._move(plan, now_s)
            if chunks:
                changes = True
                prefill = [state.compute(chunk, now_s) for chunk in chunks]
        if len(prefill) > 1 and len({live for live, _, _ in prefill}) < len(prefill):
            raise state.broken("computes a request twice in one step")
        held = batch.held
        decode_seqs = context = 0
        if decode and (batch.size > held or (self._overlaps and held)):
            decode_seqs = batch.size
            context = batch.context + decode_seqs
            needed = batch.blocks_needed()
            if not taken and needed > state.blocks.num_free:
                free = state.blocks.num_free
                raise state.broken(f"decodes {decode_seqs} requests, which takes {needed} blocks; {free} are free")
        elif changes:
            held = 0
        else:
            return None
        waiting = len(state.waiting)
        if changes:
            self._unchanged = False
            shape = shape_of(prefill, decode_seqs, context, batch.next_context_stats() if decode_seqs else (0, 0))
            return InFlight(
                plan, now_s, shape, decode_seqs, held, prefill, False, is_odd, False, taken, waiting,
                swapped_out, swapped_in, [],
            )  # fmt: skip
        # An order that time or service changes is looked at anew in every step in which somebody waits.
        is_run = self._fast_forward and holds is not _STEP and (self._timeless or not waiting)
        until = is_run and (holds is _ARRIVAL or not self._timeless)
        shape = StepShape(decode_seqs, context, 0, 0, 0, 0, *batch.next_context_stats())
        return InFlight(plan, now_s, shape, decode_seqs, held, prefill, is_run, False, until, taken, waiting, 0, 0, [])

    def _move(self, plan: StepPlan, now_s: float) -> tuple[bool, bool, int, int]:
        """Who leaves, sits out or comes back.

        Returns whether anything changes, whether anybody leaves or comes, and the blocks swapped out and in.
        """
        state = self.state
        swapped_out = swapped_in = 0
        for preemption in plan.preempt:
            swapped_out += state.preempt(preemption, now_s)
        pauses = state.set_paused(plan.paused)
        for view in plan.resume:
            swapped_in += state.resume(view, now_s)
        moves = bool(plan.preempt or plan.resume)
        return moves or pauses, moves, swapped_out, swapped_in

    def _execute(self, flight: InFlight) -> None:
        """Work out when the step ends; of a run of decode steps, when each does until something must change."""
        start_s = flight.start_s
        if flight.is_run:
            batch = self.state.batch
            steps = batch.steps_to_finish()
            if steps > _LONGEST_RUN:
                steps = _LONGEST_RUN
            due_s = self._due_s if flight.until_arrival else inf
            if due_s != inf:
                # About as many steps as fit before the arrival; the exact end is found below.
                before = int((due_s - start_s) / self._step_s) + 2
                if before < steps:
                    steps = before if before > 0 else 1
            free = self.state.blocks.num_free
            if flight.taken:
                free += batch.blocks_needed()
            steps = batch.steps_that_fit(free, steps)
            ends = self._executor.decode_run_s(flight.shape, steps)
            self._step_s = ends[-1] or 1.0
            ends[0] += start_s
            flight.ends_s = ends = list(accumulate(ends))  # in the order in which single steps would add up
            if ends[-1] > due_s:
                del ends[flight.steps_until(due_s) if self._overlaps else bisect_left(ends, due_s) + 1 :]
        else:
            flight.ends_s = [start_s + self._executor.execute(flight)]
        if self._decisions is not None:
            self._decisions.decided(self.state, flight, self._clock.now)

    # Commit

    def _commit(self, flight: InFlight) -> None:
        """The steps have run: their tokens exist, and those who have finished leave."""
        state = self.state
        ends = flight.ends_s
        end_s = ends[-1]
        prefill = flight.prefill
        records = self._records
        # Steps that only continue the last row need none of their own.
        if prefill or not self._unchanged or flight.start_s != records.end_s:
            record_row(flight, state, records)
        if flight.decode_seqs:
            sampled = True
            use = state.grow(len(ends), flight.taken)
            done = state.batch.advance(len(ends), end_s)
        else:
            sampled = False
            use = [state.blocks.num_blocks - state.blocks.num_free]
            done = _NOBODY
        records.steps(ends, use)
        if prefill:
            for live, tokens, _ in prefill:
                live.base_computed += tokens
                if live.num_tokens_to_compute == 0:
                    sampled = True
                    if self._sample(live, end_s):
                        done = [*done, live]
            state.settle(prefill)
            self._unchanged = False
        else:
            self._unchanged = sampled and not done
        if self._overlaps:
            self._turn(flight, use, sorted(done, key=_admission))
        else:
            if done:
                if len(done) > 1:
                    done = sorted(done, key=_admission)
                self._completion.finish_all(done, end_s)
            if self._decisions is not None:
                self._decisions.committed(state, flight, use, done)
        if sampled:
            self._barren_steps = 0
        else:
            self._watch_progress()

    def _sample(self, live: RequestState, end_s: float) -> bool:
        """A prefill is complete and has given a token; returns whether it was the last."""
        state = self.state
        del state.prefilling[live]
        live.base_outputs += 1
        if state.batch.meter is not None:
            state.batch.meter.sampled(live)
        if live.first_token_s != live.first_token_s:
            live.first_token_s = end_s
        elif self._streams:
            self._records.late_gaps.add((end_s - live.last_token_s, 1, end_s))
        live.last_token_s = end_s
        if live.base_outputs == live.output_tokens:
            return True
        state.batch.join(live)
        return False

    def _turn(self, flight: InFlight, use: list[int], done: list[RequestState]) -> None:
        """Those who are done leave after the next plan; those of the flight before leave now."""
        state = self.state
        running, free = len(state.running), state.blocks.num_free
        self._busy_until_s = flight.ends_s[-1]
        left = self._overlap.turn(done, self._busy_until_s)
        if len(state.running) < running:
            self._unchanged = False
        if self._decisions is not None:
            self._decisions.turned(state, flight, use, left, state.blocks.num_free - free)

    def _watch_progress(self) -> None:
        """A step, or a rest, gave no token: stop a policy that goes on for ever and gets nowhere."""
        self._barren_steps += 1
        if self._barren_steps > MAX_STEPS_WITHOUT_A_TOKEN:
            state = self.state
            raise state.broken(
                f"is one of {MAX_STEPS_WITHOUT_A_TOKEN} in a row that gave no token: {len(state.running)} running, "
                f"{len(state.waiting)} waiting, {state.blocks.num_free} free blocks"
            )


def _admission(live: RequestState) -> int:
    return live.admission
