"""The workers of a pool, started and ended: processes of this machine, or actors of an existing Ray cluster."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Protocol

from scenarios.runs.fleet_workers import RemoteWorker, Worker, WorkerPool
from scenarios.runs.ray_cluster import connect, cores, is_on_ray
from scenarios.schema.scenario import Scenario
from simulator.errors import InputError
from simulator.workload import Workload


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
