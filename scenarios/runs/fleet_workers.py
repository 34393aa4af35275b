"""Worker processes that share the replicas of one fleet. Replica n belongs to worker n modulo their number.

A worker keeps its replicas from window to window. The router sends it rows of requests, and it sends back signals.
"""

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from scenarios.assembly.fleet_parts import build_fleet
from scenarios.runs.user_code_errors import blamed
from scenarios.schema.scenario import Scenario
from simulator.errors import InputError
from simulator.fleet.fleet import Fleet
from simulator.fleet.shard import Shard, ShardReport, ShardResults
from simulator.fleet.windows import ReplicaHost, Signal
from simulator.request import Request
from simulator.workload import Workload

Found = TypeVar("Found")

_AHEAD = 2  # windows that a worker has before it: none is idle, and few requests are held


@dataclass(frozen=True, slots=True)
class Broken:
    """An error of the user's own code, and the time of the simulation at which it broke."""

    at_s: float
    error: InputError


class Worker:
    """The replicas that one worker process keeps."""

    def begin(self, scenario: Scenario, workload: Workload, numbers: Sequence[int], log_decisions: bool) -> None:
        """Build the fleet. Only these replicas of it are used."""
        self._scenario = scenario
        self._built = build_fleet(scenario)
        groups = [built.replicas for built in self._built]
        front_end = scenario.resolve_front_end()
        self._shard = Shard(workload, groups, numbers, log_decisions=log_decisions, front_end=front_end)
        self._broken: Broken | None = None

    def advance(self, rows: Sequence[int], numbers: Sequence[int], until_s: float) -> ShardReport | Broken:
        """See `Shard.advance`."""
        return self._unless_broken(lambda: self._shard.advance(rows, numbers, until_s))

    def finish(self, rows: Sequence[int], numbers: Sequence[int]) -> ShardResults | Broken:
        """See `Shard.finish`."""
        return self._unless_broken(lambda: self._shard.finish(rows, numbers))

    def _unless_broken(self, what: Callable[[], Found]) -> Found | Broken:
        if self._broken is not None:
            return self._broken
        try:
            return what()
        except Exception as error:
            place = blamed(error, self._scenario, self._built)  # here, where the user's file is in the traceback
            if place is None:
                raise
            self._broken = Broken(self._shard.broken_s, place)
            return self._broken


class RemoteWorker(Protocol):
    """A handle to a `Worker` in another process."""

    def ask(self, method: str, *arguments: Any) -> Callable[[], Any]:
        """Have the `Worker` there do this. Returns a function that waits for the answer."""

    def close(self) -> None:
        """End the worker, when the simulation is done."""


class WorkerPool:
    """See `simulator.fleet.apart.Workers`."""

    def __init__(
        self, workers: Sequence[RemoteWorker], scenario: Scenario, workload: Workload, *, log_decisions: bool
    ) -> None:
        self._workers = workers
        self._about = scenario, workload
        self._log_decisions = log_decisions

    def host_of(self, fleet: Fleet) -> ReplicaHost:
        """Let every worker make its replicas."""
        workers = self._workers[: len(fleet.replicas)]
        shares = [range(first, len(fleet.replicas), len(workers)) for first in range(len(workers))]
        begun = [
            worker.ask("begin", *self._about, share, self._log_decisions)
            for worker, share in zip(workers, shares, strict=True)
        ]
        for answer in begun:
            answer()
        return _There(fleet, workers)


class _There:
    """The `ReplicaHost` of a fleet in worker processes."""

    def __init__(self, fleet: Fleet, workers: Sequence[RemoteWorker]) -> None:
        self._fleet = fleet
        self._workers = workers
        self._answers: list[deque[Callable[[], Any]]] = [deque() for _ in workers]
        self._last = [ShardReport(0, []) for _ in workers]
        self._given: list[tuple[list[int], list[int]]] = [([], []) for _ in workers]  # rows and numbers

    def give(self, request: Request, number: int) -> None:
        rows, numbers = self._given[number % len(self._workers)]
        rows.append(request.row)
        numbers.append(number)

    def advance(self, until_s: float) -> None:
        self._ask("advance", until_s)

    def look(self) -> Iterable[Signal]:
        self._wait()
        count = len(self._workers)
        return [self._last[n % count].signals[n // count] for n in range(len(self._fleet.replicas))]

    def finish(self) -> None:
        self._wait()
        self._ask("finish")
        for answer in self._collect():
            answer.bring_in(self._fleet)
        self._fleet.recorder.tell(sum(report.ended for report in self._last))

    def _ask(self, method: str, *arguments: Any) -> None:
        for worker, answers, (rows, numbers) in zip(self._workers, self._answers, self._given, strict=True):
            answers.append(worker.ask(method, rows, numbers, *arguments))
        self._given = [([], []) for _ in self._workers]
        while len(self._answers[0]) > _AHEAD:
            self._take()

    def _wait(self) -> None:
        while self._answers[0]:
            self._take()

    def _take(self) -> None:
        """Take the reports of the window that was asked for first."""
        self._last = self._collect()
        self._fleet.recorder.tell(sum(report.ended for report in self._last))

    def _collect(self) -> list[Any]:
        """Return every worker's oldest answer. Raises the error that came first in the simulation."""
        found = [answers.popleft()() for answers in self._answers]
        broken = [answer for answer in found if isinstance(answer, Broken)]
        if broken:
            raise min(broken, key=lambda one: one.at_s).error
        return found
