"""Data-parallel ranks that share experts: every step of one is a step of all.

Ranks of a data-parallel group with expert parallelism exchange tokens in every layer that has experts, so that none
gets ahead of the others: as long as one has work, all execute, an idle one a dummy batch (vLLM 0.19,
`DPEngineCoreProc.run_busy_loop`, vllm/v1/engine/core.py). A wave is such a common step. All ranks plan at the same
moment, the step lasts as long as their shapes take together, and all commit. Scheduling stays each rank's own.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Protocol

from simpy.events import Event

from simulator.engine.clock import Clock
from simulator.engine.in_flight import InFlight
from simulator.engine.replica import Replica
from simulator.plan import StepPlan
from simulator.timing.cost import StepShape


class GroupCost(Protocol):
    """Seconds of a common step."""

    def group_step_s(self, shapes: Sequence[StepShape]) -> float:
        """Of these steps, one a rank, at least one of them with a token; a rank without work has a shape of none."""


_NO_WORK = StepShape(0, 0)


class DataParallelRank(Replica):
    """A replica whose steps a wave takes. Its own process, `serve`, is not used."""

    def take_off(self, now_s: float) -> InFlight | None:
        """Plan and apply a step; None if there is nothing to compute and no result to wait for."""
        self._view.look(now_s)
        plan = self.state.policy.plan(self._view)
        if plan.__class__ is not StepPlan:
            raise self.state.broken(f"is {plan!r}, not a StepPlan")
        if plan.wait_until_s is not None:
            raise self.state.broken("waits for a time, which ranks that step together cannot")
        flight = self._apply(plan, now_s)
        return self._behind(flight, plan, now_s) if self._overlaps else flight

    def fly(self, flight: InFlight | None, start_s: float, end_s: float) -> None:
        """The wave's step goes from `start_s` to `end_s`; a rank without work computes along."""
        if flight is None:
            self._busy_until_s = end_s
            return
        flight.start_s, flight.ends_s = start_s, [end_s]
        if self._decisions is not None:
            self._decisions.decided(self.state, flight, self._clock.now)

    def land(self, flight: InFlight) -> None:
        """Commit the step."""
        self._commit(flight)

    def rest(self, event: Event | None) -> None:
        """Wait for this event, which an arrival moves to its own time; None: rest no more."""
        self._pause = event

    @property
    def overlaps(self) -> bool:
        """Whether a step is planned while the one before it runs."""
        return self._overlaps

    @property
    def busy_until_s(self) -> float:
        """When its last step ends."""
        return self._busy_until_s


class DataParallelGroup:
    """Ranks that step together. `serve` is the SimPy process of all of them."""

    def __init__(self, clock: Clock, ranks: Sequence[DataParallelRank], cost: GroupCost) -> None:
        self._clock = clock
        self._ranks = ranks
        self._cost = cost

    def serve(self) -> Generator[Event, object, None]:
        """Plan, apply, execute, commit on all ranks at once, for ever; at rest while none has anything to do."""
        clock, ranks = self._clock, self._ranks
        while True:
            flights = [rank.take_off(clock.now) for rank in ranks]
            if not any(flights):
                pause = clock.event()
                for rank in ranks:
                    rank.rest(pause)
                yield pause
                for rank in ranks:
                    rank.rest(None)
                continue
            start_s = max(clock.now, *(rank.busy_until_s for rank in ranks))
            shapes = [_NO_WORK if flight is None else flight.shape for flight in flights]
            end_s = start_s + (self._cost.group_step_s(shapes) if any(shape.tokens for shape in shapes) else 0.0)
            for rank, flight in zip(ranks, flights, strict=True):
                rank.fly(flight, start_s, end_s)
            look_s = start_s if ranks[0].overlaps else end_s
            yield clock.at(look_s)
            for rank, flight in zip(ranks, flights, strict=True):
                if flight is not None:
                    rank.land(flight)
