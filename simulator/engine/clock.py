"""SimPy's environment with events at absolute times.

`timeout(t - now)` fires at `now + (t - now)`, which in floating point is not always `t`. The engine computes the end
of every step itself, and events must fire at exactly those times.
"""

from __future__ import annotations

from heapq import heappush

import simpy
from simpy.events import NORMAL, URGENT, Event, EventCallbacks, EventPriority

_FIRST = EventPriority(URGENT - 1)


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

    def at(self, time_s: float, *, urgent: bool = False) -> Event:
        """An event that fires at `time_s` >= now; an urgent one before all others of the same instant."""
        event = At(self)
        heappush(self._queue, (time_s, URGENT if urgent else NORMAL, next(self._eid), event))
        return event

    def before_all(self, time_s: float) -> Event:
        """An event that fires at `time_s` >= now, before the arrivals and all else of that instant."""
        event = At(self)
        heappush(self._queue, (time_s, _FIRST, next(self._eid), event))
        return event

    @property
    def has_events(self) -> bool:
        """Whether anything is still to happen."""
        return bool(self._queue)

    def skip_to(self, time_s: float) -> bool:
        """Advance to `time_s` if nothing is due until then; returns whether the clock advanced."""
        if self._queue and self._queue[0][0] <= time_s:
            return False
        self._now = time_s
        return True

    def move(self, event: Event, time_s: float) -> Event:
        """Reschedule `event`; returns the new event, at `time_s`.

        SimPy cannot reschedule an event, so the new one takes over the callbacks and the old one fires without any.
        """
        moved = self.at(time_s)
        moved.callbacks, event.callbacks = event.callbacks, []
        return moved
