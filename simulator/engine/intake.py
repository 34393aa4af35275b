"""Arrivals and aborts at one replica: they end its rest, and cut a run of steps that they could alter."""

from collections import deque
from collections.abc import Iterable
from math import inf

from simpy.events import Event

from simulator.engine.clock import DECISION, ENDS, Clock, EventPriority
from simulator.engine.in_flight import InFlight
from simulator.engine.replica import Replica
from simulator.request import Request


class Arrivals:
    """Requests to come: first those of an iterable, then those that were added, each group in order of arrival.

    `due_s` is the time of the next arrival, infinity without one.
    """

    __slots__ = ("_added", "_coming", "_requests", "due_s")

    def __init__(self, requests: Iterable[Request] = ()) -> None:
        self._requests = iter(requests)
        self._added: deque[Request] = deque()
        self._coming = next(self._requests, None)
        self.due_s = inf if self._coming is None else self._coming.arrival_s

    def add(self, request: Request) -> None:
        """Add a request that arrives after all others."""
        if self._coming is None:
            self._coming = request
            self.due_s = request.arrival_s
        else:
            self._added.append(request)

    def take(self) -> Request:
        """Take out the next request."""
        request = self._coming
        assert request is not None
        coming = next(self._requests, None)
        if coming is None and self._added:
            coming = self._added.popleft()
        self._coming = coming
        self.due_s = inf if coming is None else coming.arrival_s
        return request


class Intake:
    """Takes arrivals and aborts of one replica, and wakes its loop.

    `due_s` is the next arrival that is read ahead; infinity without one.
    """

    __slots__ = (
        "_ahead", "_clock", "_decision", "_ends", "_not_before_s", "_pause", "_replica", "_step", "_until_s", "due_s",
    )  # fmt: skip

    def __init__(self, clock: Clock, replica: Replica) -> None:
        self._clock = clock
        self._replica = replica
        self._ends = EventPriority(ENDS + replica.load.index)
        self._decision = EventPriority(DECISION + replica.load.index)
        self._step: InFlight | None = None
        self._pause: Event | None = None  # what the loop waits for
        self._not_before_s = 0.0
        self._until_s = inf  # of a rest
        self._ahead = Arrivals()
        self.due_s = inf
        replica.load.count_blocks(self._used_blocks)

    # Arrivals and aborts

    def submit(self, request: Request) -> None:
        """`request` arrives now: it queues, or is rejected because it could never be served here."""
        if not self._replica.accept(request):
            return
        step = self._step
        if step is not None:
            if step.until_arrival:
                self._cut(step, self._clock.now)
        elif self._pause is not None:
            self._end_rest()

    def abort(self, row: int) -> None:
        """The client of a request gives up now; without effect if it has ended, or is not here.

        The engine sees it when it looks next: at the end of the step in execution, before that step's tokens exist;
        with asynchronous scheduling, when the results of the step before arrive.
        """
        if self._replica.aborts.ask(row):
            self.wake()

    def wake(self) -> None:
        """Something has changed that is looked at between two steps."""
        step = self._step
        if step is not None:
            self._cut(step, self._clock.now)
        elif self._pause is not None:
            self._end_rest()

    def free_blocks(self, row: int, num_blocks: int) -> None:
        """The KV of a request that was prefilled here has left; only where no run of steps can be in execution."""
        state = self._replica.state
        state.blocks.free(row, num_blocks)
        if state.cache is not None:
            state.cache.end(row)
        self.wake()

    def has_begun(self, row: int) -> bool:
        """True if the client of a request has its first token before now; False if answers come whole.

        With asynchronous scheduling the time of a token is known before the token is there.
        """
        state = self._replica.state
        live = state.lives.get(row)
        return live is not None and state.traits.streams and live.first_token_s < self._clock.now

    def _end_rest(self) -> None:
        """Plan again, after all that happens at this time."""
        assert self._pause is not None
        self._pause = self._clock.move(self._pause, max(self._clock.now, self._not_before_s), self._decision)
        self._replica.progress.barren_steps = 0

    def _cut(self, step: InFlight, at_s: float) -> None:
        """End the run in flight with the last step that is planned before what happens at `at_s` is seen."""
        steps = step.steps_planned_by(at_s)
        if steps < len(step.ends_s):
            del step.ends_s[steps:]
            assert self._pause is not None
            self._pause = self._clock.move(self._pause, step.look_s(), self._ends)

    # Reading ahead

    def read_ahead(self, requests: Iterable[Request]) -> None:
        """Let these requests arrive, in order, at their own times: for a replica that serves all of a workload.

        No arrival then needs an event of its own, and no step is worked out beyond an arrival that matters.
        """
        self._ahead = Arrivals(requests)
        self.due_s = self._ahead.due_s

    def submit_next(self, request: Request) -> None:
        """Let a request arrive at its own time, after all that were put here so, or are read ahead."""
        self._ahead.add(request)
        at_s = request.arrival_s
        if at_s >= self.due_s:  # what is due ends a rest, and has cut a run that arrivals matter to
            return
        self.due_s = at_s
        if self._step is not None:
            self._cut(self._step, at_s)
        elif self._pause is not None and at_s < self._until_s:
            self._until_s = at_s
            self._pause = self._clock.move(self._pause, max(at_s, self._not_before_s), self._decision)

    def receive(self, now_s: float) -> None:
        """Let the requests arrive that were read ahead up to now."""
        ahead = self._ahead
        while ahead.due_s <= now_s:
            request = ahead.take()
            self.due_s = ahead.due_s
            self.submit(request)

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
        self._pause = self._clock.at(until_s, self._ends)
        return self._pause

    def rest(self, until_s: float, *, not_before_s: float = 0.0) -> Event:
        """The event that ends a rest: the next arrival or `until_s`, but not before the running step has ended."""
        until_s = self._until_s = min(until_s, self.due_s)
        self._not_before_s = not_before_s
        clock = self._clock
        self._pause = clock.event() if until_s == inf else clock.at(max(until_s, not_before_s), self._decision)
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

    def follow_up(self) -> Event | None:
        """The event to wait for between a step's end and the next plan, where clients react to ends; mostly None."""
        self.receive(self._clock.now)
        return self._clock.at(self._clock.now, self._decision) if self._clock.is_due() else None
