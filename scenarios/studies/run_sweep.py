"""A sweep: every run of a study, wherever it is worked out, as one table."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from scenarios.runs.storage.output import check_output
from scenarios.runs.storage.run_folder import PARQUET, POINTS, STUDY, TABLE
from scenarios.runs.storage.staging import staging
from scenarios.schema.scenario import Scenario
from scenarios.studies.executors import Executor, Failure, InProcess
from scenarios.studies.finished_runs import Store, write_outcome
from scenarios.studies.study import Study
from scenarios.studies.study_axes import Setting
from scenarios.studies.study_run import Outcome, address, one_line, run_scenario
from scenarios.studies.sweep_table import Row, columns, write_csv, write_parquet
from simulator.errors import InputError

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
        """The counts, as `--json` has them; `points` are rows."""
        return {"points": len(self.rows), "done": self.done, "reused": self.reused, "failed": self.failed}


def sweep(
    study: Study,
    folder: Path,
    *,
    executor: Executor | None = None,
    fresh: bool = False,
    progress: Progress | None = None,
) -> Swept:
    """Run what is not in the folder yet, and write the folder's table.

    Each run is kept as soon as it is done: a killed sweep goes on where it was. `fresh` runs everything again.
    Raises InputError for a folder that holds something else, and where no run came to a result.
    """
    check_sweep_folder(folder)
    store = Store(folder / POINTS, fresh=fresh)
    _write_study(folder, study)
    runs = _Sweep(study, store)
    for index, result in (executor or InProcess()).map(partial(_work, store.folder), runs.missing()):
        runs.came(index, result)
        if progress is not None:
            progress(len(runs.found))
    name = study.base.name
    rows = [(setting, seed, runs.found[place].of(name)) for place, (setting, seed) in enumerate(_runs(study))]
    failed = sum(1 for _, _, outcome in rows if outcome.error)
    if failed == len(rows):
        raise InputError(f"all {failed:,} runs failed", hint=f"the first: {rows[0][2].error}")
    names = columns(study.keys, rows)
    with staging(folder, replace=()) as draft:
        write_csv(draft / TABLE, names, rows)
        write_parquet(draft / PARQUET, names, rows)
    return Swept(study, rows, len(rows) - failed - runs.reused, runs.reused, failed)


def check_sweep_folder(folder: Path) -> None:
    """Raise InputError for a folder that holds something else than a sweep."""
    if not (folder / STUDY).is_file():
        check_output(folder, overwrite=False, expected=None)


def _runs(study: Study) -> list[tuple[Setting, int]]:
    return [(setting, seed) for setting in study.settings for seed in study.seeds]


class _Sweep:
    """The runs of a study on their way: which are there, which are to be worked out, which are the same."""

    def __init__(self, study: Study, store: Store) -> None:
        self.found: dict[int, Outcome] = {}
        self.reused = 0
        self._study = study
        self._store = store
        self._places: dict[str, list[int]] = {}  # of each address, in the order of the first
        self._asked: list[str] = []

    def missing(self) -> Iterator[tuple[str, Scenario]]:
        """The runs that the store does not have, each once, with their addresses."""
        for place, (setting, seed) in enumerate(_runs(self._study)):
            try:
                scenario = self._study.scenario(setting, seed)
                name = address(scenario)
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
        """The run that `missing` gave as number `index` has an outcome."""
        name = self._asked[index]
        outcome, is_kept = (Outcome({}, result.message), False) if isinstance(result, Failure) else result
        if not is_kept:
            self._store.put(name, outcome)
        self.found |= dict.fromkeys(self._places[name], outcome)


_Result = tuple[Outcome, bool]
"""An outcome, and whether the worker has kept it already."""


def _work(folder: Path, item: tuple[str, Scenario]) -> _Result:
    """A run, on a worker; kept at once where the worker sees the folder, so that no death of the sweep loses it."""
    name, scenario = item
    outcome = run_scenario(scenario)
    is_kept = not outcome.error and folder.is_dir()
    if is_kept:
        write_outcome(folder, name, outcome)
    return outcome, is_kept


def _write_study(folder: Path, study: Study) -> None:
    """The study goes first: it tells what the folder is, should the sweep be killed."""
    with staging(folder, replace=()) as draft:
        (draft / STUDY).write_text(study.dump(), encoding="utf-8", newline="\n")
