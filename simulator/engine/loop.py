"""The loops that drive a replica: plan, apply, execute, commit, and nothing between.

`Loop` is that of most replicas, with asynchronous scheduling too: a step is then planned while the one before it runs,
as in vLLM (0.33, `AsyncScheduler`); `simulator.engine.late_results` says what a plan cannot know by then. `QueueLoop`
is that of replicas that queue up several steps, `DataParallelGroup` that of ranks that step together.
"""

from collections import deque
from collections.abc import Callable, Generator, Sequence
from math import inf
from typing import TYPE_CHECKING, Final

from simpy.events import Event

from simulator.engine.clock import Clock
from simulator.engine.in_flight import InFlight
from simulator.engine.intake import Intake
from simulator.engine.replica import Replica
from simulator.timing.cost import GroupCost, StepShape

if TYPE_CHECKING:
    from simulator.engine.itemized import ItemizedReplica

NO_TOKENS: Final = StepShape(0, 0)
Agree = Callable[[Sequence[InFlight | None]], None]


class Loop:
    """Drives one replica, a step at a time or a run of steps; `serve` is a SimPy process."""

    def __init__(self, clock: Clock, replica: Replica, *, fast_forward: bool) -> None:
        self.intake = Intake(clock, replica)
        self._clock = clock
        self._replica = replica
        self._fast_forward = fast_forward

    def serve(self) -> Generator[Event, object, None]:
        """Plan, apply, execute, commit, for ever; at rest while there is nothing to do.

        Where results are late, a step is committed when the next is due to be planned.
        """
        clock, replica, intake, late = self._clock, self._replica, self.intake, self._replica.late
        aborts, listens = replica.aborts.pending, replica.has_listener
        now_s = clock.now
        intake.receive(now_s)
        while True:
            if aborts:
                replica.aborts.end_between(now_s)
            step = replica.begin_step(now_s)
            if late is not None:
                step = late.behind(step, replica.plan, now_s)
            if step is None:
                yield intake.rest(replica.rest_until_s(), not_before_s=0.0 if late is None else late.end_s)
                intake.woken()
                now_s = clock.now
                continue
            replica.execute(step, intake.due_s)
            now_s = step.ends_s[-1] if late is None else step.look_s()
            # Where nothing else happens until then, there is no need for an event.
            if not (self._fast_forward and clock.skip_to(now_s)):
                yield intake.watch(step, now_s)
                intake.release()
                now_s = clock.now  # which is earlier where the run was cut
            if intake.due_s <= now_s:
                intake.receive(now_s)
            replica.finish_step(step)
            if listens and (pause := intake.follow_up()) is not None:
                yield pause


class QueueLoop:
    """Drives one replica that plans steps until as many are in flight as may be, and then awaits the oldest.

    As in vLLM 0.33 (`EngineCore.step_with_batch_queue` and `_process_engine_step` in vllm/v1/engine/core.py). A step
    takes its place even if it is empty. Arrivals and aborts are seen between two calls, not while the engine waits for
    a result or sleeps. Every step is planned: none is jumped over.
    """

    def __init__(self, clock: Clock, replica: "ItemizedReplica", *, fast_forward: bool) -> None:
        self.intake = Intake(clock, replica)
        self._clock = clock
        self._replica = replica
        self._fast_forward = fast_forward

    def serve(self) -> Generator[Event, object, None]:
        """Plan steps and take in their results in order, for ever; at rest while there is nothing to do."""
        clock, replica, intake = self._clock, self._replica, self.intake
        queue: deque[InFlight] = deque()
        intake.receive(clock.now)
        while True:
            replica.end_aborted(clock.now)
            called_s = clock.now
            computes = False
            if replica.has_work(called_s):
                planned = replica.begin_step(called_s)
                assert planned is not None
                step = planned
                replica.execute(step)
                queue.append(step)
                computes = step.shape.tokens > 0
            elif not queue:
                yield intake.rest(inf)
                intake.woken()
                continue
            if len(queue) == replica.depth or not (computes or replica.has_work(called_s)):
                step = queue.popleft()
                yield from self._until(step, step.ends_s[-1])
                replica.finish_step(step)
                if replica.has_listener and (pause := intake.follow_up()) is not None:
                    yield pause
            if not computes and replica.idle_s > 0 and replica.has_work(called_s):
                yield from self._until(step, clock.now + replica.idle_s)

    def _until(self, step: InFlight, at_s: float) -> Generator[Event, object, None]:
        """Wait until a time that no arrival moves."""
        clock, intake = self._clock, self.intake
        if at_s > clock.now and not (self._fast_forward and clock.skip_to(at_s)):
            yield intake.watch(step, at_s)
            intake.release()
        if intake.due_s <= clock.now:
            intake.receive(clock.now)


USUAL_SYNC_INTERVAL = 16  # vLLM's `dp_sync_interval`


class Waves:
    """When data-parallel ranks in lockstep stop, and when all may compute prompts: their common count of steps.

    As in vLLM 0.33 (`DPEngineCoreProc.run_busy_loop`, vllm/v1/engine/core.py). The ranks ask each other whether any has
    work after the first common step of a wave and after every `sync_interval`-th, and not between. So they go on with
    dummy batches for some steps after the last request has finished. A request that finds them idle begins a new wave,
    whose steps are counted from 0. The first step of a wave and every `prefill_interval`-th may compute prompts.
    """

    __slots__ = ("_prefill_interval", "_steps", "_sync_interval", "runs")

    def __init__(self, sync_interval: int, prefill_interval: int) -> None:
        self._sync_interval = sync_interval
        self._prefill_interval = prefill_interval
        self._steps = 0
        self.runs = False

    def throttles(self) -> bool:
        """Return whether the next step holds prompts back, on every rank that decodes."""
        return self._steps % self._prefill_interval != 0

    def stepped(self, *, has_work: bool) -> None:
        """A common step is over; `has_work`: some rank has unfinished requests."""
        self._steps += 1
        if self._steps != 1 and self._steps % self._sync_interval:
            return
        self.runs = has_work
        if not has_work:
            self._steps = 0


class DataParallelGroup:
    """Drives data-parallel ranks that share experts, one a replica; `serve` is the SimPy process of all of them.

    Ranks of a data-parallel group with expert parallelism exchange tokens in every layer that has experts, so that none
    gets ahead of the others: as long as one has work, all execute, an idle one a `dummy` batch (vLLM 0.19,
    `DPEngineCoreProc.run_busy_loop`, vllm/v1/engine/core.py). All ranks plan at the same moment, the common step lasts
    as long as their shapes take together, and all commit. Scheduling stays each rank's own. `agree` is called with the
    ranks' steps before they are priced.
    """

    def __init__(
        self,
        clock: Clock,
        replicas: Sequence[Replica],
        cost: GroupCost,
        dummy: StepShape = NO_TOKENS,
        agree: Agree | None = None,
    ) -> None:
        self.intakes = [Intake(clock, replica) for replica in replicas]
        self._clock = clock
        self._replicas = replicas
        self._cost = cost
        self._overlaps = replicas[0].late is not None
        self._end_s = 0.0  # of the last step
        self._dummy = dummy
        self._agree = agree
        traits = replicas[0].state.traits
        self._waves: Waves | None = None
        if len(replicas) > 1 and (traits.dp_sync_interval is not None or traits.prefill_schedule_interval > 1):
            self._waves = Waves(traits.dp_sync_interval or USUAL_SYNC_INTERVAL, traits.prefill_schedule_interval)
            for replica in replicas:
                if replica.completion.decisions is not None:
                    replica.completion.decisions.tells_dummies = True

    def serve(self) -> Generator[Event, object, None]:
        """Plan, apply, execute, commit on all ranks at once, for ever; at rest while none has anything to do."""
        clock = self._clock
        while True:
            for replica in self._replicas:
                if replica.aborts.pending:
                    replica.aborts.end_between(clock.now)
            planned_s = clock.now
            if self._waves is not None:
                self._throttle(self._waves, planned_s)
            steps = [self._begin(replica, clock.now) for replica in self._replicas]
            if not any(steps) and not (self._waves is not None and self._waves.runs):
                yield self._rest()
                for intake in self.intakes:
                    intake.release()
                continue
            start_s = max(clock.now, self._end_s)
            self._end_s = self._execute(steps, start_s)
            yield clock.at(start_s if self._overlaps else self._end_s)
            for replica, step in zip(self._replicas, steps, strict=True):
                if step is not None:
                    replica.finish_step(step)
            if self._waves is not None:
                self._waves.stepped(has_work=self._has_work(planned_s))
            if self._replicas[0].has_listener and (pause := self.intakes[0].follow_up()) is not None:
                yield pause

    def _has_work(self, seen_s: float) -> bool:
        """Whether any rank has a request, of those that came by then: a rank takes in others between two steps."""
        if any(replica.imports for replica in self._replicas):
            return True
        states = [replica.state for replica in self._replicas]
        return any(state.running or any(live.arrival_s <= seen_s for live in state.waiting) for state in states)

    def _throttle(self, waves: Waves, now_s: float) -> None:
        """Tell the ranks whether they hold prompts back; a request on idle ranks begins a wave."""
        waves.runs = waves.runs or self._has_work(now_s)
        throttled = waves.throttles()
        for replica in self._replicas:
            replica.state.decode_clock.throttled = throttled

    def _begin(self, replica: Replica, now_s: float) -> InFlight | None:
        """A rank's step; None if it has nothing to compute and no result to wait for."""
        step = replica.begin_step(now_s)
        if replica.plan.wait_until_s is not None:
            raise replica.state.broken("waits for a time, which ranks that step together cannot")
        return step if replica.late is None else replica.late.behind(step, replica.plan, now_s)

    def _rest(self) -> Event:
        event = self._clock.event()
        for intake in self.intakes:
            intake.join_rest(event, not_before_s=self._end_s)
        return event

    def _execute(self, steps: Sequence[InFlight | None], start_s: float) -> float:
        """The common step's end; idle ranks compute along."""
        if self._agree is not None:
            self._agree(steps)
        computed = [step.shape if step is not None and step.shape.tokens else None for step in steps]
        computes = self._waves is not None or any(computed)
        shapes = [shape or self._dummy for shape in computed]
        end_s = start_s + (self._cost.group_step_s(shapes) if computes else 0.0)
        for replica, step in zip(self._replicas, steps, strict=True):
            if step is not None:
                replica.execute_until(step, start_s, end_s)
                continue
            if replica.late is not None:
                replica.late.end_s = end_s
            if self._waves is not None and replica.completion.decisions is not None:
                replica.completion.decisions.dummy(replica.state, start_s, end_s)
        return end_s
