"""Run a sweep: every run of a study, on any executor, as one table; and read the folder of a sweep back.

Each finished run is a file in a folder, named by the run's address. It is moved to its name when it is complete, so
whatever has its name is whole, however the process ended.
"""

from __future__ import annotations

import csv
import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from scenarios.runs.storage.output import check_output
from scenarios.runs.storage.run_folder import PARQUET, POINTS, STUDY, TABLE
from scenarios.runs.storage.staging import staging, unwritable
from scenarios.schema.scenario import Scenario
from scenarios.studies.executors import Failure, InProcess, SweepExecutor
from scenarios.studies.study import Setting, Study, load_study
from scenarios.studies.study_run import Outcome, address, one_line, run_scenario
from simulator.errors import InputError

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
