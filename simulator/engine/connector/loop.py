"""The loop of a replica with a connector (`EngineCore` in vllm/v1/engine/core.py, 0.33).

It steps on while copies go on, though nothing is computed: such a step takes no time, and a short sleep follows it,
which no arrival ends. With asynchronous scheduling up to two steps are in flight, those without tokens too.
"""

from collections import deque
from collections.abc import Generator
from typing import Final

from simpy.events import Event

from simulator.engine.clock import Clock
from simulator.engine.connector.replica import ConnectedReplica
from simulator.engine.connector.results import ConnectedStep
from simulator.engine.intake import Intake

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
