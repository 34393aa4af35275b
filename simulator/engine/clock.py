"""SimPy's environment with events at absolute times.

`timeout(t - now)` fires at `now + (t - now)`, which in floating point is not always `t`. The engine computes the end
of every step itself, and events must fire at exactly those times.

What happens at one time has an order, which does not depend on the order in which the events were made:

0. `LOOK`: a router looks at its signals.
1. `URGENT`: requests arrive, then clients abort, each in order of rows.
2. `ENDS`: steps end, replica by replica. Aborts up to then go first, then the step's tokens exist.
3. `FOLLOW_UP`: what clients do at once when a request of theirs ends: as in 1.
4. `DECISION`: replicas plan, one after the other.

Where no client listens, a replica goes from 2 to 4 without an event between: nothing can come of an end.
"""

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from heapq import heappush
from math import inf

import simpy
from simpy.events import URGENT, Event, EventCallbacks, EventPriority

# SimPy's environment with events at absolute times.
# `timeout(t - now)` fires at `now + (t - now)`, which in floating point is not always `t`. The engine computes the
# end of every step itself, and events must fire at exactly those times.
# What happens at one time has an order, which does not depend on the order in which the events were made:
# 0. `LOOK`: a router looks at its signals. 1. `URGENT`: requests arrive, then clients abort, each in order of rows.
# 2. `ENDS`: steps end, replica by replica. Aborts up to then go first, then the step's tokens exist. 3.
# `FOLLOW_UP`: what clients do at once when a request of theirs ends: as in 1. 4. `DECISION`: replicas plan, one
# after the other.
# Where no client listens, a replica goes from 2 to 4 without an event between: nothing can come of an end.

LOOK = EventPriority(URGENT - 1)
# To each of these a replica adds its index.
ENDS = EventPriority(1 << 10)
FOLLOW_UP = EventPriority(1 << 30)
DECISION = EventPriority(1 << 31)

__all__ = ["DECISION", "ENDS", "FOLLOW_UP", "LOOK", "URGENT", "At", "Clock", "EventPriority"]


class At(Event):
    """An event that is certain to happen, like SimPy's own `Timeout`."""

    def __init__(self, env: simpy.Environment) -> None:
        # Not through the base class, as in `Timeout`: most of a simulation's events are made here.
        self.env = env
        self.callbacks: EventCallbacks = []
        self._value = None
        self._ok = True


class Clock(simpy.Environment):
    """A simulation clock in seconds."""

    def __init__(self) -> None:
        super().__init__(0.0)  # SimPy's own default is the integer
        self._ticks = 0
        self._until_s = inf  # of `advance`

    def at(self, time_s: float, priority: EventPriority = ENDS) -> Event:
        """An event that fires at `time_s` >= now; of one time, that of the smaller priority first."""
        event = At(self)
        heappush(self._queue, (time_s, priority, next(self._eid), event))
        return event

    def call(self, time_s: float, happen: Callable[[], None], priority: EventPriority = ENDS) -> None:
        """Call `happen` at `time_s` >= now, which is the event that `at` makes."""
        then(self.at(time_s, priority), happen)

    def tick(self, time_s: float) -> Event:
        """An event for who only looks on: it comes first at its time, and keeps no run going."""
        event = self.at(time_s, LOOK)
        then(event, self._ticked)
        self._ticks += 1
        return event

    def _ticked(self) -> None:
        self._ticks -= 1

    @property
    def has_events(self) -> bool:
        """True if events other than ticks are still to come."""
        return len(self._queue) > self._ticks

    def is_due(self) -> bool:
        """True if another event happens now."""
        return bool(self._queue) and self._queue[0][0] <= self._now

    def skip_to(self, time_s: float) -> bool:
        """Advance to `time_s` if nothing is due until then; returns whether the clock advanced."""
        if time_s >= self._until_s or (self._queue and self._queue[0][0] <= time_s):
            return False
        self._now = time_s
        return True

    def advance(self, until_s: float) -> None:
        """Let happen all that comes before `until_s`, and nothing of that time; `lower` may bring it forward."""
        self._until_s = until_s
        queue = self._queue
        while queue and queue[0][0] < self._until_s:
            self.step()
        if self._now < self._until_s < inf:
            self._now = self._until_s
        self._until_s = inf

    def lower(self, until_s: float) -> None:
        """Let `advance` go no further than the event of now, or than `until_s` if that is later."""
        if until_s < self._until_s:
            self._until_s = until_s

    def move(self, event: Event, time_s: float, priority: EventPriority = ENDS) -> Event:
        """Reschedule `event`; returns the new event, at `time_s`.

        SimPy cannot reschedule an event, so the new one takes over the callbacks and the old one fires without any;
        or it goes, where that is simple, as on the clock of a single replica.
        """
        if self._queue and self._queue[-1][3] is event:
            self._queue.pop()
        moved = self.at(time_s, priority)
        moved.callbacks, event.callbacks = event.callbacks, []
        return moved


def then(event: Event, happen: Callable[[], None]) -> None:
    """Call `happen` when the event, which has not come yet, does."""
    assert event.callbacks is not None
    event.callbacks.append(lambda _: happen())


@contextmanager
def no_garbage_collection() -> Iterator[None]:
    """Pause the cycle collector inside: it walks every object there is, at a moment of its own choosing."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
