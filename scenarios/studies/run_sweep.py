"""Run a study: its executors, each run and its address, the sweep as one table, and the folder of a sweep read back."""

from __future__ import annotations

import csv
import gc
import hashlib
import json
import os
from collections import OrderedDict
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache, lru_cache, partial
from pathlib import Path
from typing import Any, Protocol, TypeVar

from scenarios.assembly.engines import resolved_yaml
from scenarios.assembly.workloads import BY_CLASS, build_workload
from scenarios.bound.bound import bound
from scenarios.runs.result import PROVENANCE
from scenarios.runs.runner import run_on
from scenarios.runs.storage.output import check_output
from scenarios.runs.storage.run_folder import PARQUET, POINTS, STUDY, TABLE, staging, unwritable
from scenarios.runs.workers import connect, cores, is_on_ray
from scenarios.schema.cost import OwnCostConfig, ProfileCostConfig
from scenarios.schema.scenario import Scenario
from scenarios.schema.trace import TraceWorkload
from scenarios.studies.study import Setting, Study, load_study
from scenarios.version import __version__
from simulator.errors import InputError
from simulator.workload import Workload

# Executors of the runs of a study: processes of this machine, or an existing Ray cluster.
#
# An executor gives back each outcome as it comes, in any order. Studies put the outcomes in order again, so the
# result does not depend on the place of work. A function that raises, or a worker that dies, costs its own item and
# no other.

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


# One run of a study: its address, and what a worker makes of it.
#
# A run is addressed by its content: the scenario with every default written out (its name apart), the bytes of the
# files that it reads, and the code. Runs of one address have one result, so a study takes up where it was killed,
# runs only what changed, and shares with others what they have in common.

_ROOT = Path(__file__).parents[2]
_MOST_ROWS = 2_000_000  # requests of all workloads that a worker keeps
_kept: OrderedDict[str, Workload] = OrderedDict()


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of a run: its summary, or the error (`summary` is then empty)."""

    summary: Mapping[str, Any]
    error: str = ""
    notes: tuple[str, ...] = ()

    def of(self, name: str) -> Outcome:
        """Return the outcome for a scenario of this name: runs are shared, whatever their scenario is called."""
        if self.error:
            return self
        return replace(self, summary={**self.summary, PROVENANCE: {**self.summary[PROVENANCE], "scenario": name}})

    def to_json(self) -> str:
        """JSON that `from_json` reads back, equal for equal outcomes."""
        found = {"summary": dict(self.summary), "notes": list(self.notes)}
        return json.dumps(found, ensure_ascii=False, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> Outcome:
        """Read the outcome in a text. Raises ValueError for any other text."""
        found = json.loads(text)
        try:
            return cls(dict(found["summary"]), notes=tuple(found["notes"]))
        except (KeyError, TypeError):
            raise ValueError("not an outcome") from None


def address(scenario: Scenario) -> str:
    """Return the address of a scenario's run, in hexadecimal digits."""
    body = resolved_yaml(scenario.model_copy(update={"name": "run"}))
    digest = hashlib.sha256(f"{_code()}\n{body}".encode())
    for path in files_read(scenario):
        digest.update(_content(path, path.stat().st_mtime_ns, path.stat().st_size).encode())
    return digest.hexdigest()[:40]


def run_scenario(scenario: Scenario, *, bounded: bool = False) -> Outcome:
    """Simulate a scenario for its summary. An error in the scenario is an outcome too.

    If `bounded`, the summary says what no scheduler can do better.
    """
    try:
        workload = _workload(scenario)
        result = run_on(scenario, workload)
        if bounded:
            result = result.bounded(bound(scenario, workload, **scenario.measure.window(result.records)))
    except InputError as error:
        return Outcome({}, one_line(error))
    return Outcome(result.summary, notes=result.notes)


def one_line(error: InputError) -> str:
    """An error as a cell of a table holds it."""
    return " ".join(f"{error.message}{f' ({error.hint})' if error.hint else ''}".split())


def files_read(scenario: Scenario) -> Iterator[Path]:
    """Yield the files that a run reads: its trace, its profile, and the user's own code."""
    if isinstance(scenario.workload, TraceWorkload):
        yield scenario.workload.path
    if isinstance(scenario.cost, ProfileCostConfig) and scenario.cost.path is not None:
        yield Path(scenario.cost.path)
    if isinstance(scenario.cost, OwnCostConfig):
        yield scenario.cost.file
    yield from scenario.measure.files
    for code in (scenario.engine.policy_file, scenario.routing.file):
        if code is not None:
            yield code


def _workload(scenario: Scenario) -> Workload:
    """Return the scenario's workload, which its neighbours in a grid mostly share."""
    asked = resolved_workload(scenario)
    found = _kept.pop(asked, None)
    if found is None:
        found = build_workload(scenario)
    _kept[asked] = found
    while sum(map(len, _kept.values())) > _MOST_ROWS and len(_kept) > 1:
        _kept.popitem(last=False)
    return found


def resolved_workload(scenario: Scenario) -> str:
    """Return equal texts for scenarios that serve the same requests, as far as the scenario tells."""
    workload = scenario.workload
    parts: list[object] = [workload.model_dump(mode="json"), scenario.seed]
    if isinstance(workload, TraceWorkload):
        about = workload.path.stat()
        parts += [about.st_mtime_ns, about.st_size]
    # Checked against the classes when the workload is built: who shares one has to agree on them.
    parts += [sorted(scenario.engine.given().get(key) or ()) for key in BY_CLASS]
    parts += [scenario.slo and sorted(scenario.slo.classes or ())]
    return json.dumps(parts, default=str, sort_keys=True)


@lru_cache(maxsize=64)
def _content(path: Path, modified_ns: int, size: int) -> str:
    """Return the digest of a file, which is read once as long as it does not change."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while piece := file.read(1 << 20):
            digest.update(piece)
    return digest.hexdigest()


@cache
def _code() -> str:
    """Return the version, and a digest of what a result rests on: the code, the shipped profiles and tables."""
    digest = hashlib.sha256()
    sources = {"simulator": "*.py", "scenarios": "*.py", "calibration/profiles": "*.json", "calibration/tables": "*.gz"}
    for room, files in sources.items():
        for path in sorted((_ROOT / room).rglob(files)):
            digest.update(path.read_bytes())
    return f"{__version__} {digest.hexdigest()}"


# The table of a sweep: a row a point and seed, in the order of the grid.

ERROR = "error"

Row = tuple[Setting, int, Outcome]
"""Setting, seed and outcome of a run."""


def columns(keys: Sequence[str], rows: Sequence[Row]) -> list[str]:
    """List the columns: the varied keys, `seed`, the keys of summary.json as they come up, and `error`."""
    summary = dict.fromkeys(key for _, _, outcome in rows for key in outcome.summary)
    return [*keys, "seed", *(key for key in summary if key not in keys), ERROR]


def cells(names: Sequence[str], row: Row) -> list[Any]:
    """Return the values of a row; None where it has none, and mappings and lists as JSON."""
    setting, seed, outcome = row
    values: dict[str, Any] = {**outcome.summary, **setting, "seed": seed, ERROR: outcome.error}
    found = [values.get(name) for name in names]
    return [json.dumps(each, ensure_ascii=False) if isinstance(each, (dict, list, tuple)) else each for each in found]


def write_csv(path: Path, names: Sequence[str], rows: Sequence[Row]) -> None:
    """Write the table as CSV: numbers in full, `true` and `false`, and nothing for what a row has not."""
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(names)
        for row in rows:
            writer.writerow([_text(value) for value in cells(names, row)])


def write_parquet(path: Path, names: Sequence[str], rows: Sequence[Row]) -> None:
    """Write the table as parquet, if pyarrow is installed."""
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        return
    by_name = zip(*(cells(names, row) for row in rows), strict=True)
    parquet.write_table(
        pyarrow.table({name: _alike(column) for name, column in zip(names, by_name, strict=True)}), path
    )


def read_csv(path: Path) -> list[dict[str, Any]]:
    """Read the rows of a table that `write_csv` wrote: each a mapping of column to value.

    Raises OSError, and ValueError or csv.Error where the file is no such table.
    """
    with path.open(encoding="utf-8", newline="") as file:
        reader = csv.DictReader(file, strict=True)
        found = [{name: _value(text) for name, text in row.items()} for row in reader]
    if not found or not {"seed", ERROR} <= found[0].keys():
        raise ValueError("it is no table of a sweep")
    return found


def _value(text: str | None) -> Any:
    if text is None:
        raise ValueError("a row ends too soon")
    if not text:
        return None
    for read in (json.loads, float):  # "nan" is a float, and no JSON
        try:
            return read(text)
        except ValueError:
            continue
    return text


def _text(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    return repr(value) if isinstance(value, float) else str(value)


def _alike(values: Sequence[Any]) -> Sequence[Any]:
    """Give the values of a column one type for parquet: numbers as floats if one is, all as text if they mix."""
    kinds = {type(value) for value in values if value is not None}
    if kinds == {int, float}:
        return [None if value is None else float(value) for value in values]
    if len(kinds) > 1:
        return [None if value is None else _text(value) for value in values]
    return values


Progress = Callable[[int], None]


@dataclass(frozen=True, slots=True)
class Swept:
    """The rows of a sweep in the order of its grid, seeds innermost.

    `done` runs were simulated, `reused` ones were there already, `failed` ones have an error in their row.
    """

    study: Study
    rows: Sequence[Row]
    done: int
    reused: int
    failed: int

    def counts(self) -> dict[str, int]:
        """Return the counts as `--json` has them; `points` are rows."""
        return {"points": len(self.rows), "done": self.done, "reused": self.reused, "failed": self.failed}


def sweep(
    study: Study,
    folder: Path,
    *,
    executor: SweepExecutor | None = None,
    fresh: bool = False,
    bounded: bool = False,
    progress: Progress | None = None,
) -> Swept:
    """Run what is not in the folder yet, and write the folder's table.

    Each run is kept as soon as it is done: a killed sweep goes on where it was. `fresh` runs everything again. If
    `bounded`, the summary of each says what no scheduler can do better.
    Raises InputError for a folder that holds something else than a sweep, and if every run fails.
    """
    if not (folder / STUDY).is_file():
        check_output(folder, overwrite=False, expected=None)
    store = Store(folder / POINTS, fresh=fresh)
    with staging(folder, replace=()) as draft:  # the study goes first: it says what a killed sweep's folder is
        (draft / STUDY).write_text(study.dump(), encoding="utf-8", newline="\n")
    runs = _Sweep(study, store, bounded=bounded)
    for index, result in (executor or InProcess()).map(
        partial(run_and_keep, store.folder, bounded=bounded), runs.missing()
    ):
        runs.came(index, result)
        if progress is not None:
            progress(len(runs.found))
    name = study.base.name
    rows = [(setting, seed, runs.found[place].of(name)) for place, (setting, seed) in enumerate(study.runs())]
    failed = sum(1 for _, _, outcome in rows if outcome.error)
    if failed == len(rows):
        raise InputError(f"all {failed:,} runs failed", hint=f"the first: {rows[0][2].error}")
    names = columns(study.keys, rows)
    with staging(folder, replace=()) as draft:
        write_csv(draft / TABLE, names, rows)
        write_parquet(draft / PARQUET, names, rows)
    return Swept(study, rows, len(rows) - failed - runs.reused, runs.reused, failed)


class _Sweep:
    """The runs of a study under way: some are there, some are still to be made, some are the same."""

    def __init__(self, study: Study, store: Store, *, bounded: bool = False) -> None:
        self._mark = "b" if bounded else ""  # of addresses: a run with bounds has another summary
        self.found: dict[int, Outcome] = {}
        self.reused = 0
        self._study = study
        self._store = store
        self._places: dict[str, list[int]] = {}  # of each address, in the order of the first
        self._asked: list[str] = []

    def missing(self) -> Iterator[tuple[str, Scenario]]:
        """Yield the runs that the store does not have, each once, with their addresses."""
        for place, (setting, seed) in enumerate(self._study.runs()):
            try:
                scenario = self._study.scenario(setting, seed)
                name = address(scenario) + self._mark
            except InputError as error:
                self.found[place] = Outcome({}, one_line(error))
                continue
            if name in self._places:
                self._places[name].append(place)
                if (twin := self.found.get(self._places[name][0])) is not None:
                    self.found[place] = twin
                continue
            self._places[name] = [place]
            if (there := self._store.get(name)) is None:
                self._asked.append(name)
                yield name, scenario
            else:
                self.found[place] = there
                self.reused += 1

    def came(self, index: int, result: _Result | Failure) -> None:
        """Keep the outcome of the run that `missing` gave as number `index`."""
        name = self._asked[index]
        outcome, is_kept = (Outcome({}, result.message), False) if isinstance(result, Failure) else result
        if not is_kept:
            self._store.put(name, outcome)
        self.found |= dict.fromkeys(self._places[name], outcome)


_Result = tuple[Outcome, bool]
"""An outcome, and whether the worker has kept it already."""


def run_and_keep(folder: Path, item: tuple[str, Scenario], *, bounded: bool = False) -> tuple[Outcome, bool]:
    """Run a scenario, whose address comes with it, on a worker; return the outcome and whether the worker has kept it.

    It does so if it sees the folder: a killed sweep does not lose the run.
    """
    name, scenario = item
    outcome = run_scenario(scenario, bounded=True) if bounded else run_scenario(scenario)
    is_kept = not outcome.error and folder.is_dir()
    if is_kept:
        write_outcome(folder, name, outcome)
    return outcome, is_kept


class Store:
    """Keeps outcomes by address. `fresh` ignores those of earlier studies."""

    def __init__(self, folder: Path, *, fresh: bool = False) -> None:
        self.folder = folder
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise unwritable(folder, error) from error
        self._fresh = fresh

    def get(self, address: str) -> Outcome | None:
        """Return the outcome of an address; None where there is none, or none that can be read."""
        if self._fresh:
            return None
        with suppress(OSError, ValueError):
            return Outcome.from_json((self.folder / f"{address}.json").read_text(encoding="utf-8"))
        return None

    def put(self, address: str, outcome: Outcome) -> None:
        """Keep an outcome without an error. Raises InputError where the disk does not take it."""
        if not outcome.error:
            write_outcome(self.folder, address, outcome)


def write_outcome(folder: Path, address: str, outcome: Outcome) -> None:
    """Write the file of an outcome, whole or not at all. Raises InputError where the disk does not take it."""
    draft = folder / f".{address}-{os.getpid()}"
    try:
        draft.write_text(outcome.to_json(), encoding="utf-8")
        draft.replace(folder / f"{address}.json")
    except OSError as error:
        with suppress(OSError):
            draft.unlink()
        raise unwritable(folder, error) from error


def read_sweep(folder: Path) -> Swept:
    """Read the sweep in a folder, as if all of its runs had been reused. The files that it names need not be there.

    Raises InputError for a sweep that has not ended, and for a damaged table.
    """
    study = load_study(folder / STUDY, check_files=False)
    path = folder / TABLE
    if not path.is_file():
        raise InputError(
            "the sweep is not finished", file=str(path), hint="batchlab sweep with the same --out continues it"
        )
    try:
        cells = read_csv(path)
    except (OSError, ValueError, csv.Error) as error:
        raise InputError(f"cannot be read: {error}", file=str(path)) from None
    runs = study.runs()
    if [row["seed"] for row in cells] != [seed for _, seed in runs]:
        what = f"has {len(cells):,} rows, and the study beside it {len(runs):,} runs"
        raise InputError(what, file=str(path), hint="batchlab sweep with the same --out writes it again")
    own = {*study.keys, "seed", ERROR}
    rows = []
    for (setting, seed), row in zip(runs, cells, strict=True):
        summary = {} if row[ERROR] else {key: value for key, value in row.items() if key not in own}
        rows.append((setting, seed, Outcome(summary, row[ERROR] or "")))
    failed = sum(1 for _, _, outcome in rows if outcome.error)
    return Swept(study, rows, 0, len(rows) - failed, failed)
