"""What a run gives back in Python: the summary, and its tables as pandas data frames, made when asked for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from simulator.results.records import Records

if TYPE_CHECKING:
    import pandas as pd

    from scenarios.runs.storage.tables import Column
    from scenarios.schema.scenario import Scenario


@dataclass(frozen=True)  # no slots: the data frames are kept in the instance's dictionary
class Result:
    """One simulation. `summary` is summary.json; `decisions` one dict a step, None unless they were asked for.

    `notes` say in words what a reader of the numbers should know: rows skipped in the trace, requests rejected.
    """

    scenario: Scenario
    scenario_yaml: str  # with every default written out
    records: Records
    summary: dict[str, Any]
    decisions: list[dict[str, Any]] | None = None
    notes: tuple[str, ...] = ()

    @cached_property
    def requests(self) -> pd.DataFrame:
        """One row a request, in workload order; the columns of requests.csv.gz."""
        from scenarios.runs.storage.tables import request_columns

        return _frame(request_columns(self.records))

    @cached_property
    def steps(self) -> pd.DataFrame:
        """One row a step, or a run of `repeat` equal decode steps; the columns of steps.csv.gz."""
        from scenarios.runs.storage.tables import step_columns

        return _frame(step_columns(self.records))

    def save(self, folder: str | Path) -> Path:
        """Write the run folder, whole or not at all; files of an earlier run in it are replaced. Returns its path.

        Raises InputError where the folder cannot be written, or holds something else than a run.
        """
        from scenarios.runs.storage.run_folder import check_target, owned_files, write_result
        from scenarios.runs.storage.staging import staging

        target = Path(folder)
        check_target(target)
        with staging(target, owned=owned_files(target)) as inside:
            write_result(inside, self)
        return target


def _frame(table: Mapping[str, Column]) -> pd.DataFrame:
    import pandas as pd

    return pd.DataFrame(dict(table))
