"""The ordinary loop of a replica: plan, apply, execute, commit, and nothing between."""

from collections.abc import Generator

from simpy.events import Event

from simulator.engine.clock import Clock
from simulator.engine.intake import Intake
from simulator.engine.replica import Replica


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
