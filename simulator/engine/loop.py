"""The loops that drive a replica: plan, apply, execute, commit, and nothing between."""

from collections.abc import Generator

from simpy.events import Event

from simulator.engine.clock import Clock
from simulator.engine.intake import Intake
from simulator.engine.late_results import LateResults
from simulator.engine.replica import Replica

# The ordinary loop of a replica: plan, apply, execute, commit, and nothing between.


class Loop:
    """Drives one replica, a step at a time or a run of steps; `serve` is a SimPy process."""

    def __init__(self, clock: Clock, replica: Replica, *, fast_forward: bool) -> None:
        self.intake = Intake(clock, replica)
        self._clock = clock
        self._replica = replica
        self._fast_forward = fast_forward

    def serve(self) -> Generator[Event, object, None]:
        """Plan, apply, execute, commit, for ever; at rest while there is nothing to do."""
        clock, replica, intake = self._clock, self._replica, self.intake
        aborts, listens = replica.aborts.pending, replica.has_listener
        now_s = clock.now
        intake.receive(now_s)
        while True:
            if aborts:
                replica.aborts.end_between(now_s)
            step = replica.begin_step(now_s)
            if step is None:
                yield intake.rest(replica.rest_until_s())
                intake.woken()
                now_s = clock.now
                continue
            replica.execute(step, intake.due_s)
            now_s = step.ends_s[-1]
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


# Asynchronous scheduling: a step is planned while the one before it runs, so that two are in flight.
# As in vLLM (0.33, `AsyncScheduler`). `simulator.engine.late_results` says what a plan cannot know by then.


class AsyncLoop:
    """Drives one replica with asynchronous scheduling; `serve` is a SimPy process. The replica's `late` is `late`."""

    def __init__(self, clock: Clock, replica: Replica, late: LateResults, *, fast_forward: bool) -> None:
        self.intake = Intake(clock, replica)
        self._clock = clock
        self._replica = replica
        self._late = late
        self._fast_forward = fast_forward

    def serve(self) -> Generator[Event, object, None]:
        """Plan and apply a step behind the running one, and commit it when the next is due to be planned, for ever."""
        clock, replica, intake, late = self._clock, self._replica, self.intake, self._late
        aborts, listens = replica.aborts.pending, replica.has_listener
        now_s = clock.now
        intake.receive(now_s)
        while True:
            if aborts:
                replica.aborts.end_between(now_s)
            step = late.behind(replica.begin_step(now_s), replica.plan, now_s)
            if step is None:
                yield intake.rest(replica.rest_until_s(), not_before_s=late.end_s)
                intake.woken()
                now_s = clock.now
                continue
            replica.execute(step, intake.due_s)
            look_s = step.look_s()
            if not (self._fast_forward and clock.skip_to(look_s)):
                yield intake.watch(step, look_s)
                intake.release()
            now_s = clock.now  # which is before look_s where the run was cut
            if intake.due_s <= now_s:
                intake.receive(now_s)
            replica.finish_step(step)
            if listens and (pause := intake.follow_up()) is not None:
                yield pause
