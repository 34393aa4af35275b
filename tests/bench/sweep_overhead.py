"""`python -m tests.bench.sweep_overhead [POINTS]`: what a sweep costs beside its simulations, and whether cores idle.

CPU seconds of the sweep's own process from its first result to the last, and of its workers from the end of their first
run (which imports the simulator) to that of their last, less those inside `run_scenario`, over the number of points.
What comes once is said apart. Workers are busy while they have a run in hand: that share of the time is hardly touched
by what else the machine does.
"""

import os
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import scenarios.studies.run_sweep as sweep_module
from scenarios.schema.scenario import Scenario
from scenarios.studies.run_sweep import Failure, Local, Outcome, run_scenario
from scenarios.studies.study import parse_vary, study_of

POINTS = 200
WORKERS = 2
SCENARIO = "quickstart"


@dataclass(frozen=True, slots=True)
class Clocked:
    """A run on a worker: its result, when it began and ended, its CPU seconds at the end and inside the simulation."""

    result: Any
    worker: int
    begin_s: float
    end_s: float
    cpu_end_s: float
    simulating_s: float


@dataclass(frozen=True, slots=True)
class Figures:
    """CPU seconds of a sweep, and the share of the time for which both workers had a run in hand."""

    points: int
    once_s: float
    own_s: float
    workers_s: float
    simulating_s: float
    busy: float

    @property
    def overhead_ms(self) -> float:
        """A point's CPU milliseconds beside its simulation, in the sweep's process and on a worker."""
        return 1e3 * (self.own_s + self.workers_s - self.simulating_s) / self.points


class Watched(Local):
    """Processes of this machine that say when they worked."""

    def __init__(self) -> None:
        super().__init__(WORKERS)
        self.runs: list[Clocked] = []
        self.first_s = self.last_s = 0.0  # CPU seconds of this process when the first and the last result came

    def map(self, function: Callable[[Any], Any], items: Iterable[Any]) -> Iterator[tuple[int, Any | Failure]]:
        """See `Executor`."""
        for place, found in super().map(partial(_clocked, function), items):
            assert not isinstance(found, Failure), found.message
            self.last_s = time.process_time()
            self.first_s = self.first_s or self.last_s
            self.runs.append(found)
            yield place, found.result


def _clocked(function: Callable[[Any], Any], item: Any) -> Clocked:
    """On a worker: the function, and how much of it is the simulation."""
    inside: list[float] = []

    def clocked_run(scenario: Scenario) -> Outcome:
        before = time.process_time()
        outcome = run_scenario(scenario)
        inside.append(time.process_time() - before)
        return outcome

    setattr(sweep_module, "run_scenario", clocked_run)  # noqa: B010 - what `run_and_keep` calls, on this worker alone
    begin_s = time.monotonic()
    result = function(item)
    return Clocked(result, os.getpid(), begin_s, time.monotonic(), time.process_time(), sum(inside))


def measure(points: int = POINTS) -> Figures:
    """Sweep so many points of the quickstart, none of which is there yet."""
    study = study_of(SCENARIO, [parse_vary(f"engine.max_num_batched_tokens=512:8192:{points}")])
    assert len(study) == points
    executor = Watched()
    with tempfile.TemporaryDirectory() as folder:
        began = time.process_time()
        swept = sweep_module.sweep(study, Path(folder), executor=executor)
        ended = time.process_time()
    assert swept.done == points
    by_worker: dict[int, list[Clocked]] = defaultdict(list)
    for run in sorted(executor.runs, key=lambda run: run.end_s):
        by_worker[run.worker].append(run)
    later = [run for runs in by_worker.values() for run in runs[1:]]
    workers_s = sum(runs[-1].cpu_end_s - runs[0].cpu_end_s for runs in by_worker.values())
    begin_s = max(runs[0].end_s for runs in by_worker.values())  # from when all are under way
    end_s = min(runs[-1].end_s for runs in by_worker.values())  # until the first finds nothing left
    busy_s = sum(max(0.0, min(run.end_s, end_s) - max(run.begin_s, begin_s)) for run in later)
    simulating_s = sum(run.simulating_s for run in later)
    return Figures(
        len(later),
        executor.first_s - began,
        ended - executor.first_s,
        workers_s,
        simulating_s,
        busy_s / (WORKERS * (end_s - begin_s)),
    )


def main() -> None:
    """The figures in a line each."""
    found = measure(int(sys.argv[1]) if len(sys.argv) > 1 else POINTS)
    print(f"{found.points} points of {SCENARIO}, {WORKERS} workers; CPU seconds")
    print(
        f"simulations           {found.simulating_s:8.2f}  ({1e3 * found.simulating_s / found.points:.1f} ms a point)"
    )
    print(f"workers, all in all   {found.workers_s:8.2f}")
    print(
        f"the sweep's process   {found.own_s:8.2f}  (and {found.once_s:.2f} before the first result and after the last)"
    )
    print(f"overhead              {found.overhead_ms:8.2f} ms a point")
    print(f"both workers busy     {found.busy:8.1%} of the time")


if __name__ == "__main__":
    from tests.bench import sweep_overhead  # functions of __main__ would be pickled by value, for every point

    sweep_overhead.main()
