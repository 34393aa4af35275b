"""The simulation on the event loop's clock: what comes in, when tokens go out, and the run folder that it leaves.

The engine's time is the loop's since the first request, times `time_scale`. Nothing of the simulation waits: it is
advanced to now when something comes in, and when its next event is due. Tokens go out when the client is to have them,
a few streams at a time, so that a step of hundreds of requests does not hold up the others on the loop.
"""

import asyncio
from collections.abc import Collection, Sequence
from heapq import heappop, heappush
from math import inf
from pathlib import Path
from typing import Any

from scenarios.assembly.fleet_parts import build_fleet, build_flow_control, build_link, build_router
from scenarios.assembly.workloads import BY_CLASS
from scenarios.runs.result import Result
from scenarios.runs.runner import sum_up
from scenarios.runs.storage.run_folder import ARRIVALS
from scenarios.schema.loader import load
from scenarios.schema.scenario import Scenario
from scenarios.serve.prometheus import Meters
from scenarios.traces import read_trace
from scenarios.traces.convert import write_native
from simulator.request import Request
from simulator.request_state import RequestState
from simulator.results.records import Cause, Status
from simulator.simulate import Run
from simulator.traffic.live import Listener, LiveTraffic

# A scenario as a run in progress, and the run folder that it leaves.


class Session:
    """The replicas of a scenario, whose requests come from outside; its own workload says how long answers are."""

    def __init__(self, scenario: Scenario, *, log_decisions: bool = False) -> None:
        self.scenario = scenario
        self.fleet = build_fleet(scenario)
        self._log_decisions = log_decisions

    def start(self, listener: Listener) -> LiveTraffic:
        """Begin the run."""
        scenario = self.scenario
        return LiveTraffic(
            [built.replicas for built in self.fleet],
            listener,
            router=build_router(scenario),
            signal_interval_s=scenario.routing.interval_s,
            log_decisions=self._log_decisions,
            front_end=scenario.resolve_front_end(),
            slo=scenario.resolve_slo(),
            link=build_link(scenario),
            flow_control=build_flow_control(scenario),
        )

    def finish(self, live: LiveTraffic, folder: Path, target: Path) -> Result:
        """End the run and write its folder, which will be `target`: the recorded requests are the scenario's workload.

        `batchlab run` on the `scenario.yaml` in it writes the same bytes.
        """
        records = live.finish()
        workload = live.workload()
        write_native(workload, folder / ARRIVALS)
        scenario = on_recorded(self.scenario, target / ARRIVALS, workload.class_names)
        notes = read_trace(folder / ARRIVALS).notes
        done = Run(records, live.decisions(), live.delays_s())
        result = sum_up(scenario, workload, self.fleet, done, notes)
        result.write(folder)
        return result


def on_recorded(scenario: Scenario, arrivals: Path, classes: Collection[str]) -> Scenario:
    """Make the recorded requests the scenario's workload; of what the scenario says by class, keep only `classes`."""
    data = scenario.model_dump(exclude_unset=True)
    data["workload"] = {"trace": {"path": str(arrivals.absolute()), "format": "native"}}
    for section, key in (("slo", "classes"), *(("engine", key) for key in BY_CLASS)):
        by_class: dict[str, Any] | None = (data.get(section) or {}).get(key)
        if by_class:
            data[section] = {**data[section], key: {name: by_class[name] for name in by_class if name in classes}}
    return load(data, check_files=False)


_AT_ONCE = 24  # deliveries, and times of the simulation, before the loop has its turn


class Ticket:
    """The requests of one call, from its submission until its client has all answers.

    `rejected` is set instead of an answer, with the reason.
    """

    def __init__(self, first_row: int, totals: Sequence[int]) -> None:
        self.first_row = first_row
        self.totals = totals
        self.open = len(totals)  # choices whose answer is not there yet
        self.rejected: Cause | None = None
        self.broken = False  # the simulation has failed
        self._news: list[tuple[int, int]] = []
        self._waiter: asyncio.Future[None] | None = None

    async def news(self) -> list[tuple[int, int]]:
        """Wait for choices that have more tokens, and return each with its tokens by now.

        The list is empty when nothing more comes: all answers are there, or none will be.
        """
        if not self._news and self.open and not self.is_over:
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        found, self._news = self._news, []
        return [] if self.is_over else found

    @property
    def is_over(self) -> bool:
        """True if it was rejected, or cannot be answered."""
        return self.rejected is not None or self.broken

    def deliver(self, choice: int, tokens: int) -> None:
        """Tell the client that it has so many tokens of a choice."""
        self._news.append((choice, tokens))
        if tokens >= self.totals[choice]:
            self.open -= 1
        self._wake()

    def reject(self, cause: Cause) -> None:
        """Tell the client that one of its requests was rejected."""
        self.rejected = cause
        self._wake()

    def fail(self) -> None:
        """Tell the client that no answer can come."""
        self.broken = True
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class Engine:
    """The run in progress behind a server. Its methods are called on the event loop."""

    def __init__(self, session: Session, meters: Meters, *, time_scale: float = 1.0) -> None:
        self.live: LiveTraffic = session.start(self)
        self.failure: Exception | None = None
        self._meters = meters
        self._scale = time_scale
        self._zero_s: float | None = None  # the loop's time at which the engine's began
        self._tickets: dict[int, Ticket] = {}  # by row
        # A heap: when the client has them, tokens, row. Of one step's tokens, first tokens go out first.
        self._outbox: list[tuple[float, int, int]] = []
        self._timer: asyncio.TimerHandle | None = None
        self._timer_s = inf
        meters.watch(self.live)

    # Time

    def _now_s(self) -> float:
        """The engine's time."""
        loop_s = asyncio.get_running_loop().time()
        if self._zero_s is None:
            self._zero_s = loop_s
        return (loop_s - self._zero_s) * self._scale

    def _run(self, due_s: float = 0.0) -> None:
        """Do what is due by now or by `due_s`, a time that the loop may have rounded, and set the next timer."""
        now_s, live, outbox = max(self._now_s(), due_s), self.live, self._outbox
        self._timer_s = inf
        for _ in range(_AT_ONCE):
            if self.failure is not None or live.next_s > now_s:
                break
            self._guarded_advance(live.next_s)
        for _ in range(_AT_ONCE):
            if not outbox or outbox[0][0] > now_s:
                break
            _, tokens, row = heappop(outbox)
            self._deliver(row, tokens)
        self._arm()

    def _guarded_advance(self, until_s: float) -> None:
        try:
            self.live.advance(until_s)
        except Exception as error:  # a policy of the user's own, or a defect: the server ends with it
            self.failure = error
            for ticket in self._tickets.values():
                ticket.fail()

    def _arm(self) -> None:
        next_s = self._outbox[0][0] if self._outbox else inf
        if self.failure is None:
            next_s = min(next_s, self.live.next_s)
        if next_s >= self._timer_s:
            return
        if self._timer is not None:
            self._timer.cancel()
        assert self._zero_s is not None
        self._timer_s = next_s
        self._timer = asyncio.get_running_loop().call_at(self._zero_s + next_s / self._scale, self._run, next_s)

    # From clients

    @property
    def has_calls(self) -> bool:
        """True if a client still waits for an answer, or for the rest of one."""
        return bool(self._tickets)

    def submit(self, requests: Sequence[Request]) -> Ticket:
        """Let the requests of one call arrive now; it is known at once whether they are rejected."""
        ticket = Ticket(self.live.num_requests, [request.output_tokens for request in requests])
        for row in range(ticket.first_row, ticket.first_row + len(requests)):
            self._tickets[row] = ticket
        self._guarded_advance(self.live.submit(requests, self._now_s()))
        self._run()
        return ticket

    def leave(self, ticket: Ticket) -> None:
        """Abort what the client of a call, which is gone, still waits for."""
        now_s = self._now_s()
        for row in range(ticket.first_row, ticket.first_row + len(ticket.totals)):
            if self._tickets.pop(row, None) is not None and self.failure is None:
                self.live.abort(row, now_s)
        self._run()

    def leave_all(self) -> None:
        """End all calls without an answer."""
        for ticket in dict.fromkeys(self._tickets.values()):
            ticket.fail()
            self.leave(ticket)

    # From the simulation

    def has_tokens(self, row: int, tokens: int, at_s: float) -> None:
        live = self.live
        seen_s = at_s + live.delay_s(row)
        self._meters.has_tokens(row, tokens, live.replica_of(row), live.request(row).arrival_s, seen_s)
        heappush(self._outbox, (seen_s, tokens, row))

    def ended(self, row: int, status: Status, at_s: float, cause: Cause | None) -> None:
        self._meters.ended(row)
        if cause is not None and (ticket := self._tickets.pop(row, None)) is not None:
            ticket.reject(cause)
            for other in range(ticket.first_row, ticket.first_row + len(ticket.totals)):
                if self._tickets.pop(other, None) is not None:  # the others of the call have no use
                    self.live.abort(other, at_s)

    def left(self, live: RequestState, replica: int, status: Status) -> None:
        self._meters.left(live, replica, status)

    def _deliver(self, row: int, tokens: int) -> None:
        ticket = self._tickets.get(row)
        if ticket is None:
            return  # its client has left
        choice = row - ticket.first_row
        ticket.deliver(choice, tokens)
        if tokens >= ticket.totals[choice]:
            del self._tickets[row]
