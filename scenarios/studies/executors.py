"""Executors of the runs of a study: processes of this machine, or an existing Ray cluster.

An executor gives back each outcome as it comes, in any order. Studies put the outcomes in order again, so the result
does not depend on the place of work. A function that raises, or a worker that dies, costs its own item and no other.
"""

import gc
import os
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass
from functools import cache
from typing import Any, Protocol, TypeVar

from scenarios.runs.workers import connect, cores, is_on_ray
from simulator.errors import InputError

Item = TypeVar("Item")
Found = TypeVar("Found")

_AHEAD = 2  # items that wait in each worker's queue: none is ever idle, and few are lost when a worker dies
_IDLE_S = 60.0  # without an item for so long, a worker ends: no other end comes to those of a sweep that was killed
_DIED = "the worker process died (out of memory, or killed)"


@dataclass(frozen=True, slots=True)
class Failure:
    """An item without a result: `message` says why."""

    message: str


class SweepExecutor(Protocol):
    """Applies a function to items. The function and the items must be picklable."""

    def map(self, function: Callable[[Item], Found], items: Iterable[Item]) -> Iterator[tuple[int, Found | Failure]]:
        """Yield the place of each item with the function's result, in the order in which they are done.

        Items are taken as there is room for them, a few ahead of those that are being worked on.
        """


class InProcess:
    """Does one item after another in this process."""

    def map(self, function: Callable[[Item], Found], items: Iterable[Item]) -> Iterator[tuple[int, Found | Failure]]:
        for place, item in enumerate(items):
            yield place, _guarded(function, item)


class Local:
    """Processes of this machine; `workers` of them, one a core unless given."""

    def __init__(self, workers: int | None = None) -> None:
        self.workers = workers or usable_cores()

    def map(self, function: Callable[[Item], Found], items: Iterable[Item]) -> Iterator[tuple[int, Found | Failure]]:
        if self.workers == 1:
            yield from InProcess().map(function, items)
            return
        suspects = yield from _in_processes(function, enumerate(items), self.workers)
        for place, item in suspects:  # a worker died: the item that killed it does so again when it runs alone
            if (yield from _in_processes(function, iter([(place, item)]), 1)):
                yield place, Failure(_DIED)


def _in_processes(
    function: Callable[[Item], Found], items: Iterator[tuple[int, Item]], workers: int
) -> Generator[tuple[int, Found | Failure], None, list[tuple[int, Item]]]:
    """Yields as `map` does, and returns the items in whose time a worker died."""
    from loky import ProcessPoolExecutor
    from loky.process_executor import BrokenProcessPool

    running: dict[Future[Found | Failure], tuple[int, Item]] = {}
    suspects: list[tuple[int, Item]] = []
    pool = ProcessPoolExecutor(max_workers=workers, timeout=_IDLE_S)
    try:
        while True:
            while len(running) < _AHEAD * workers and (entry := next(items, None)) is not None:
                running[pool.submit(_on_worker, function, entry[1])] = entry
            if not running:
                return suspects
            done, _ = wait(running, return_when=FIRST_COMPLETED)
            broken = False
            for future in done:
                entry = running.pop(future)
                try:
                    yield entry[0], future.result()
                except BrokenProcessPool:
                    broken = True
                    suspects.append(entry)
            if broken:
                suspects += running.values()
                running.clear()
                pool.shutdown(wait=True, kill_workers=True)
                pool = ProcessPoolExecutor(max_workers=workers, timeout=_IDLE_S)
    finally:
        pool.shutdown(wait=True, kill_workers=True)


class Ray:
    """The nodes of an existing Ray cluster, which need this package and the files that the scenarios name."""

    def __init__(self, address: str | None = None) -> None:
        self._ray = connect(address)

    def map(self, function: Callable[[Item], Found], items: Iterable[Item]) -> Iterator[tuple[int, Found | Failure]]:
        ray = self._ray
        task = ray.remote(_guarded).options(max_retries=1)
        shared = ray.put(function)
        running: dict[Any, int] = {}
        waiting = enumerate(items)
        while True:
            most = _AHEAD * cores(ray)
            while len(running) < most and (entry := next(waiting, None)) is not None:
                running[task.remote(shared, entry[1])] = entry[0]
            if not running:
                return
            done, _ = ray.wait(list(running), num_returns=1)
            for reference in done:
                place = running.pop(reference)
                try:
                    yield place, ray.get(reference)
                except ray.exceptions.RayError as error:
                    yield place, Failure(f"{_DIED}: {type(error).__name__}")


def executor(name: str, workers: int | None = None, address: str | None = None) -> SweepExecutor:
    """Make the executor that the flags --executor, --workers and --address ask for. Raises InputError."""
    if not is_on_ray(name, workers, address):
        return Local(workers)
    if workers is not None:
        raise InputError("a Ray cluster has workers of its own", file="--workers", hint="leave it out")
    return Ray(address)


def usable_cores() -> int:
    """Count the cores that this process may use."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not on macOS and Windows
        return os.cpu_count() or 1


def _guarded(function: Callable[[Item], Found], item: Item) -> Found | Failure:
    try:
        return function(item)
    except Exception as error:
        return Failure(f"{type(error).__name__}: {error}")


def _on_worker(function: Callable[[Item], Found], item: Item) -> Found | Failure:
    found = _guarded(function, item)
    _settle()
    return found


@cache
def _settle() -> None:
    """Freeze what a worker has loaded after its first item, so that loky's collection every second skips it."""
    gc.freeze()
