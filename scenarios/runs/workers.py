"""Workers that share the replicas of one fleet: processes of this machine, or actors of an existing Ray cluster."""

import traceback
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

from scenarios.assembly.fleet_parts import BuiltGroup, build_fleet
from scenarios.schema.cost import OwnCostConfig
from scenarios.schema.scenario import Scenario
from simulator.errors import InputError, PolicyError, RouterError
from simulator.fleet.fleet import Fleet
from simulator.fleet.windows import ReplicaHost, Shard, ShardReport, ShardResults, Signal
from simulator.request import Request
from simulator.workload import Workload

# Connect to an existing Ray cluster.


def is_on_ray(executor: str, workers: int | None, address: str | None) -> bool:
    """Return whether `--executor` asks for Ray. Raises InputError where the three flags do not go together."""
    if workers is not None and workers < 1:
        raise InputError(f"at least one worker is needed, not {workers}", file="--workers")
    if executor not in ("local", "ray"):
        raise InputError(f"unknown executor {executor!r}", file="--executor", hint="allowed: local, ray")
    if executor == "local" and address is not None:
        raise InputError("only --executor ray has an address", file=f"--address {address}")
    return executor == "ray"


def connect(address: str | None) -> Any:
    """Return the module `ray`, connected to the cluster at `address`, else to the one here. Raises InputError."""
    try:
        import ray
    except ImportError:
        raise InputError("Ray is not installed", file="--executor ray", hint="pip install 'batchlab[ray]'") from None
    if ray.is_initialized():
        return ray
    try:
        ray.init(address=address or "auto", log_to_driver=False, logging_level="ERROR")
    except (ConnectionError, ValueError, RuntimeError) as error:
        what = f"no Ray cluster at {address}" if address else "no Ray cluster is running here"
        hint = f"`ray start --head` starts one, --address names it ({error})"
        raise InputError(what, file="--address", hint=hint) from None
    return ray


def cores(ray: Any) -> int:
    """The cores of the cluster."""
    return max(1, int(ray.cluster_resources().get("CPU", 1)))


# Errors of the user's own code, with its file and line.


class _NoRuleError(Exception):
    """Stands for rules that nobody breaks by an error of their own."""


def blamed(error: Exception, scenario: Scenario, fleet: Sequence[BuiltGroup]) -> InputError | None:
    """Return the error placed in the user's own file that it comes from: policy, cost model or router; else None."""
    for file, broken, hint in _users_code(scenario, fleet):
        if (found := _blame(error, file, broken, hint)) is not None:
            return found
    return None


def _users_code(scenario: Scenario, fleet: Sequence[BuiltGroup]) -> Iterator[tuple[Path, type[Exception], str]]:
    """Yield the files of the user's own policies, cost models and router, each with its error of a broken rule."""
    policies = dict.fromkeys(built.group.scenario.engine.policy_file for built in fleet)
    for policy in policies:
        if policy is not None:
            yield policy, PolicyError, "what a plan may say is written in simulator/plan.py"
    for cost in (built.group.scenario.cost for built in fleet):
        if isinstance(cost, OwnCostConfig):
            yield cost.file, _NoRuleError, ""  # OwnCost tells of broken rules itself, with the file
    if (router := scenario.routing.file) is not None:
        yield router, RouterError, "choose returns one of the replicas (see simulator/fleet/router.py)"


def _blame(error: Exception, file: Path, broken: type[Exception], hint: str) -> InputError | None:
    """Return the error placed in the user's file: the broken rule, or the line that raised."""
    causes: list[BaseException] = [error]
    while (cause := causes[-1].__cause__) is not None:
        causes.append(cause)
    for cause in causes:
        if isinstance(cause, broken) and getattr(cause, "file", None) in (None, str(file)):
            message = cause.message if isinstance(cause, PolicyError) else str(cause)
            return InputError(message, file=str(file), hint=hint)
    for cause in reversed(causes):
        frames = [f for f in traceback.extract_tb(cause.__traceback__) if Path(f.filename) == file]
        if frames:
            return InputError(f"{type(cause).__name__}: {cause}", file=str(file), line=frames[-1].lineno)
    return None


# Worker processes that share the replicas of one fleet. Replica n belongs to worker n modulo their number.
#
# A worker keeps its replicas from window to window. The router sends it rows of requests, and it sends back
# signals.

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
    """See `simulator.fleet.cluster.Workers`."""

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


# The workers of a pool, started and ended: processes of this machine, or actors of an existing Ray cluster.


class PoolMaker(Protocol):
    """Makes the worker pool of one simulation."""

    def __call__(
        self, scenario: Scenario, workload: Workload, *, log_decisions: bool
    ) -> AbstractContextManager[WorkerPool]:
        """The pool, whose workers end with the block."""


def pool_maker(executor: str = "local", workers: int | None = None, address: str | None = None) -> PoolMaker | None:
    """Return the maker of the pool that these flags ask for; None: this process does all.

    The default of `workers` is 1 here, and one for each core on a Ray cluster.
    """
    if not is_on_ray(executor, workers, address):
        return _maker(LokyProcess, workers) if workers is not None and workers > 1 else None
    ray = connect(address)
    return _maker(lambda: RayActor(ray), workers or cores(ray))


def _maker(start: Callable[[], RemoteWorker], workers: int) -> PoolMaker:
    @contextmanager
    def pool(scenario: Scenario, workload: Workload, *, log_decisions: bool) -> Iterator[WorkerPool]:
        started = [start() for _ in range(min(workers, scenario.num_replicas))]
        try:
            yield WorkerPool(started, scenario, workload, log_decisions=log_decisions)
        finally:
            for each in started:
                each.close()

    return pool


def _died(hint: str) -> InputError:
    return InputError("a worker process died (out of memory, or killed)", file="--workers", hint=hint)


_worker = Worker()  # of a process of loky's


def _do(method: str, *arguments: Any) -> Any:
    return getattr(_worker, method)(*arguments)


class LokyProcess:
    """A process of this machine. It is a pool of one: the same process does everything that it is asked."""

    def __init__(self) -> None:
        from loky import ProcessPoolExecutor

        self._pool = ProcessPoolExecutor(max_workers=1)

    def ask(self, method: str, *arguments: Any) -> Callable[[], Any]:
        """See `RemoteWorker`. Raises InputError where the process has died."""
        from loky.process_executor import BrokenProcessPool

        try:
            future = self._pool.submit(_do, method, *arguments)
        except BrokenProcessPool as error:
            raise _died("fewer workers") from error

        def answer() -> Any:
            try:
                return future.result()
            except BrokenProcessPool as error:
                raise _died("fewer workers") from error

        return answer

    def close(self) -> None:
        """See `RemoteWorker`."""
        self._pool.shutdown(wait=True, kill_workers=True)


class RayActor:
    """An actor of a Ray cluster, on one core. Its node needs this package and the files that the scenario names."""

    def __init__(self, ray: Any) -> None:
        self._ray = ray
        self._actor = ray.remote(Worker).options(num_cpus=1).remote()

    def ask(self, method: str, *arguments: Any) -> Callable[[], Any]:
        """See `RemoteWorker`: an actor does what it is asked in the order of asking."""
        ray = self._ray
        reference = getattr(self._actor, method).remote(*arguments)

        def answer() -> Any:
            try:
                return ray.get(reference)
            except ray.exceptions.RayTaskError as error:
                raise error.cause from error
            except ray.exceptions.RayError as error:
                raise _died("fewer workers, or larger nodes") from error

        return answer

    def close(self) -> None:
        """See `RemoteWorker`."""
        self._ray.kill(self._actor)
