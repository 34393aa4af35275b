"""Arrivals at one replica: they end its rest, and cut a run of steps that they could alter."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from math import inf

from simpy.events import Event

from simulator.engine.clock import Clock
from simulator.engine.in_flight import InFlight
from simulator.engine.replica import Replica
from simulator.request import Request


class Intake:
    """What a replica's loop waits for, and the requests that arrive meanwhile.

    `due_s` is the next arrival that is read ahead; infinity without one.
    """

    __slots__ = (
        "_ahead",
        "_clock",
        "_dealt",
        "_due",
        "_not_before_s",
        "_pause",
        "_replica",
        "_step",
        "_until_s",
        "due_s",
    )

    def __init__(self, clock: Clock, replica: Replica) -> None:
        self._clock = clock
        self._replica = replica
        self._step: InFlight | None = None
        self._pause: Event | None = None  # what the loop waits for
        self._not_before_s = 0.0
        self._until_s = inf  # when the rest ends without a further arrival
        self._ahead: Iterator[Request] = iter(())
        self._dealt: deque[Request] = deque()
        self._due: Request | None = None
        self.due_s = inf
        replica.load.count_blocks(self._used_blocks)

    # Arrivals

    def submit(self, request: Request) -> None:
        """`request` arrives now: it queues, or is rejected because it could never be served here."""
        if not self._replica.accept(request):
            return
        step = self._step
        if step is not None:
            if step.until_arrival:
                self._cut(step, self._clock.now)
        elif self._pause is not None:  # plan again, after the other arrivals of this instant
            self._pause = self._clock.move(self._pause, max(self._clock.now, self._not_before_s))
            self._replica.progress.barren_steps = 0

    def read_ahead(self, requests: Iterator[Request]) -> None:
        """Let these requests arrive, in order, at their own times: for a replica that serves all of a workload.

        No arrival then needs an event of its own, and no step is worked out beyond an arrival that matters.
        """
        self._ahead = requests
        self._next_due()

    def expect(self, request: Request) -> None:
        """`request` arrives at its own time, now or later, and after all that are expected already."""
        if self._due is not None:
            self._dealt.append(request)
            return
        self._due = request
        self.due_s = due_s = request.arrival_s
        if self._step is not None:
            if self._step.until_arrival:
                self._cut(self._step, due_s)
        elif self._pause is not None and due_s < self._until_s:
            self._pause = self._clock.move(self._pause, max(due_s, self._not_before_s))

    def receive(self, now_s: float) -> None:
        """Submit the requests read ahead that have arrived by now."""
        while self._due is not None and self.due_s <= now_s:
            self.submit(self._due)
            self._next_due()

    def _next_due(self) -> None:
        self._due = self._dealt.popleft() if self._dealt else next(self._ahead, None)
        self.due_s = inf if self._due is None else self._due.arrival_s

    def _cut(self, step: InFlight, at_s: float) -> None:
        """End the run in flight with the last step that is planned before an arrival at `at_s` is seen."""
        steps = step.steps_planned_by(at_s)
        if steps < len(step.ends_s):
            del step.ends_s[steps:]
            assert self._pause is not None
            self._pause = self._clock.move(self._pause, step.look_s())

    def _used_blocks(self) -> int:
        """KV blocks in use now: of a run of steps, in the last that is planned by now."""
        state = self._replica.state
        used = state.blocks.num_blocks - state.blocks.num_free
        step = self._step
        if step is None or len(step.ends_s) == 1:
            return used
        steps = min(step.steps_planned_by(self._clock.now), len(step.ends_s))
        return state.batch.block_use(used, steps)[-1]

    # Waiting

    def watch(self, step: InFlight, until_s: float) -> Event:
        """The event at `until_s`, which an arrival may move: the step is in execution until then."""
        self._step = step
        self._pause = self._clock.at(until_s)
        return self._pause

    def rest(self, until_s: float, *, not_before_s: float = 0.0) -> Event:
        """The event that ends a rest: the next arrival or `until_s`, but not before the running step has ended."""
        self._until_s = until_s = min(until_s, self.due_s)
        self._not_before_s = not_before_s
        self._pause = self._clock.event() if until_s == inf else self._clock.at(max(until_s, not_before_s))
        return self._pause

    def join_rest(self, event: Event, *, not_before_s: float) -> None:
        """Rest until `event`, which others wait for too; an arrival moves it."""
        self._not_before_s = not_before_s
        self._pause = event

    def release(self) -> None:
        """The event has come."""
        self._step = self._pause = None

    def woken(self) -> None:
        """The rest is over."""
        self._pause = None
        if self.due_s <= self._clock.now:
            self._replica.progress.barren_steps = 0
            self.receive(self._clock.now)
