"""Replicas simulated independently: from one window to the next, and the share that one worker process has."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from math import inf
from typing import Any, NamedTuple, Protocol

from simulator.engine.admission import ReplicaLoad
from simulator.engine.clock import Clock, no_garbage_collection
from simulator.fleet.fleet import Fleet
from simulator.fleet.group import ReplicaGroup
from simulator.front_end import NO_FRONT_END, FirstTokens, FrontEnd
from simulator.request import Request
from simulator.results.recorder import Recorder
from simulator.workload import Workload

# Replicas simulated independently: each on a clock of its own, from one window to the next.
#
# Between two looks of the router at its signals nothing passes from one replica to another but the requests, and
# what these are and where they go is known when the window begins (a conservative window; R. M. Fujimoto, Parallel
# Discrete Event Simulation, Communications of the ACM 33:10 (1990), 30-53). So a replica may be advanced to the end
# of the window without regard to the others: here one after the other, which keeps its memory in the processor's
# cache, or in worker processes. A router that looks at nothing chooses without end; its windows only bound how many
# requests are held.

_FEWEST, _PER_REPLICA = 4096, 64  # requests of a window without a look at its end


class Signal(NamedTuple):
    """A replica as a router with stale signals sees it."""

    num_waiting: int
    num_running: int
    used_blocks: int
    loras: tuple[str, ...] = ()

    @classmethod
    def of(cls, load: ReplicaLoad) -> Signal:
        """As it is now."""
        return cls(load.num_waiting, load.num_running, load.used_blocks, tuple(load.loras))


class ReplicaHost(Protocol):
    """Where the replicas of a fleet are advanced."""

    def give(self, request: Request, number: int) -> None:
        """Let `request` arrive at the replica of this number, at its own time: after all that were given before."""

    def advance(self, until_s: float) -> None:
        """Let happen all that comes before `until_s`, and nothing of that time: by the time of the next look."""

    def look(self) -> Iterable[Signal]:
        """The signals of all replicas now, in the order of their numbers."""

    def finish(self) -> None:
        """Nothing more arrives: let happen all there is. The fleet then holds what there is to record."""


class LocalReplicas:
    """Advances these replicas of a fleet in this process; all of them where `numbers` is not given."""

    def __init__(self, fleet: Fleet, numbers: Sequence[int] | None = None) -> None:
        self._numbers = range(len(fleet.replicas)) if numbers is None else numbers
        self._intakes = fleet.intakes
        self._clocks = fleet.clocks
        self._loads = fleet.loads
        self.broken_s = inf  # when the first replica broke

    def give(self, request: Request, number: int) -> None:
        self._intakes[number].submit_next(request)

    def advance(self, until_s: float) -> None:
        """See `ReplicaHost`. Of several replicas that break, it is the first in time that raises, as on one clock."""
        broken: Exception | None = None
        with no_garbage_collection():
            for number in self._numbers:
                clock = self._clocks[number]
                try:
                    clock.advance(until_s)
                except Exception as error:
                    broken, until_s = error, clock.now
                    self.broken_s = until_s
        if broken is not None:
            raise broken

    def look(self) -> Iterable[Signal]:
        for number in self._numbers:
            self._intakes[number].receive(self._clocks[number].now)  # what has arrived during a step waits already
        return [Signal.of(self._loads[number]) for number in self._numbers]

    def finish(self) -> None:
        self.advance(inf)


def serve_unseen(
    requests: Iterable[Request], choose: Callable[[Request], int], host: ReplicaHost, replicas: int
) -> None:
    """Serve requests, in order of arrival, that a router sends without a look at any replica."""
    coming = iter(requests)
    while window := list(islice(coming, max(_FEWEST, _PER_REPLICA * replicas))):
        for request in window:
            host.give(request, _chosen(request, choose, host))
        host.advance(window[-1].arrival_s)
    host.finish()


def serve_by_looks(
    requests: Iterable[Request],
    choose: Callable[[Request], int],
    host: ReplicaHost,
    show: Callable[[Iterable[Signal]], None],
    interval_s: float,
) -> None:
    """Serve requests, in order of arrival, by a router to which signals are shown at every multiple of `interval_s`.

    A look that no arrival follows before the next one is left out. A look comes before the arrivals of its time.
    """
    ticks, next_s = 0, interval_s
    for request in requests:
        if request.arrival_s >= next_s:
            ticks = max(ticks + 1, int(request.arrival_s / interval_s) - 1)  # the quotient may be rounded either way
            while (ticks + 1) * interval_s <= request.arrival_s:
                ticks += 1
            next_s = (ticks + 1) * interval_s
            host.advance(ticks * interval_s)
            show(host.look())
        host.give(request, _chosen(request, choose, host))
    host.finish()


def _chosen(request: Request, choose: Callable[[Request], int], host: ReplicaHost) -> int:
    """The router's choice. Where it breaks, what breaks earlier in time is raised instead."""
    try:
        return choose(request)
    except Exception:
        host.advance(request.arrival_s)
        host.look()
        raise


# The share of a fleet that one worker process has.


@dataclass(frozen=True, slots=True)
class ShardReport:
    """A worker's answer after a window: how many requests have ended there, and its replicas' signals."""

    ended: int
    signals: list[Signal]


@dataclass(frozen=True, slots=True)
class ShardResults:
    """The results of a worker's replicas: their numbers, their records, and the decisions of each, if logged.

    First tokens are there if something lies between clients and engine.
    """

    numbers: Sequence[int]
    recorder: Recorder
    decisions: list[list[dict[str, Any]]] | None
    first_tokens: FirstTokens | None

    def bring_in(self, fleet: Fleet) -> None:
        """Put all of it where the fleet's own replicas would have put it."""
        fleet.recorder.take_over(self.recorder, self.numbers)
        if fleet.first_tokens is not None and self.first_tokens is not None:
            fleet.first_tokens.take_over(self.first_tokens)
        if fleet.logs is not None and self.decisions is not None:
            for number, steps in zip(self.numbers, self.decisions, strict=True):
                fleet.logs[number].steps = steps


class Shard:
    """A fleet of which only the replicas `numbers` are ever given a request; `workload` is the whole one."""

    def __init__(
        self,
        workload: Workload,
        groups: Sequence[ReplicaGroup],
        numbers: Sequence[int],
        *,
        log_decisions: bool,
        front_end: FrontEnd = NO_FRONT_END,
    ) -> None:
        self._workload = workload
        self._numbers = numbers
        recorder = Recorder(sum(group.replicas for group in groups))
        first_tokens = FirstTokens(front_end)
        self._fleet = Fleet(Clock, groups, recorder, log_decisions=log_decisions, first_tokens=first_tokens)
        self._host = LocalReplicas(self._fleet, numbers)

    def advance(self, rows: Sequence[int], numbers: Sequence[int], until_s: float) -> ShardReport:
        """Let the requests of these rows arrive at these replicas, and let happen all that comes before `until_s`."""
        self._give(rows, numbers)
        self._host.advance(until_s)
        return ShardReport(self._fleet.recorder.ended, list(self._host.look()))

    def finish(self, rows: Sequence[int], numbers: Sequence[int]) -> ShardResults:
        """Likewise, but all there is, and give away what there is to record."""
        self._give(rows, numbers)
        self._host.finish()
        self._fleet.abandon()
        logs = self._fleet.logs
        decisions = None if logs is None else [logs[number].steps for number in self._numbers]
        return ShardResults(self._numbers, self._fleet.recorder, decisions, self._fleet.first_tokens)

    @property
    def broken_s(self) -> float:
        """When a replica broke, in the time of the simulation."""
        return self._host.broken_s

    def _give(self, rows: Sequence[int], numbers: Sequence[int]) -> None:
        for request, number in zip(self._workload.requests_of(rows), numbers, strict=True):
            self._host.give(request, number)
