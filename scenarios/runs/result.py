"""The result of a run in Python: its summary, and its tables as pandas data frames, made on demand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scenarios.assembly.engine_policy import policies_label
from scenarios.runs.storage.output import output, same_scenario
from scenarios.runs.storage.run_folder import write_run
from scenarios.runs.storage.run_tables import Column, replica_columns, request_columns, step_columns
from scenarios.schema.scenario import Scenario
from scenarios.show import Shown, html_table, one_line, picture
from simulator.results.records import Records
from simulator.results.shared_prefixes import shared_prefixes
from simulator.workload import Workload

if TYPE_CHECKING:
    import pandas as pd

    from scenarios.bound.at_best import Bounds
    from scenarios.show import Picture


BOUND = "bound"  # in summary.json: what no scheduler can do better


@dataclass(frozen=True, repr=False)  # no slots: the data frames are kept in the instance's dictionary
class Result:
    """One simulation. `summary` is summary.json; `decisions` one dict a step, None unless they were asked for.

    `notes` tell what alters the meaning of the numbers: rows skipped in the trace, requests rejected.
    """

    scenario: Scenario
    scenario_yaml: str  # with every default written out
    records: Records
    summary: dict[str, Any]
    decisions: list[dict[str, Any]] | None = None
    notes: tuple[str, ...] = ()
    workload: Workload | None = None  # the requests as they were read or drawn

    def __repr__(self) -> str:
        return f"<Result {self.scenario.name}, {self.label}: {one_line(self.summary)}>"

    def _repr_html_(self) -> str:
        return html_table(self.scenario.name, [self.shown()])

    @property
    def label(self) -> str:
        """The name of the run in tables: its policy."""
        return policies_label(self.scenario)

    def shown(self, label: str = "", summaries: Sequence[Mapping[str, Any]] = ()) -> Shown:
        """The run as a line of tables and reports, under a label of its own and with the summaries of all seeds."""
        shown = label or self.label, self.scenario, self.scenario_yaml, self.records, summaries or [self.summary]
        return Shown(*shown, workload=self.workload)

    def bounded(self, bounds: Bounds) -> Result:
        """The result with those of the bounds that hold for this run in its summary."""
        from scenarios.bound.bound import of_run  # few runs ask for it

        assert self.workload is not None
        held = of_run(bounds, self.records, self.workload)
        told = [f"no bound on more, for {why}" for why in held.why_not]
        return replace(self, summary={**self.summary, BOUND: held.values()}, notes=(*self.notes, *told))

    @cached_property
    def requests(self) -> pd.DataFrame:
        """One row a request, in workload order; the columns of requests.csv.gz."""
        return _frame(request_columns(self.records))

    @cached_property
    def steps(self) -> pd.DataFrame:
        """One row a step, or a run of `repeat` equal decode steps; the columns of steps.csv.gz."""
        return _frame(step_columns(self.records))

    @cached_property
    def replicas(self) -> pd.DataFrame:
        """One row a replica; the columns of replicas.csv.gz."""
        return _frame(replica_columns(self.records, **self.scenario.measure.window(self.records)))

    def plot(self, kind: str = "timeline") -> Picture:
        """A picture of the report: a notebook shows it, `.save("x.png")` or `.save("x.svg")` writes it.

        Raises InputError for an unknown kind, with the kinds that exist.
        """
        return picture([self.shown()], kind)

    def save(self, folder: str | Path, *, overwrite: bool = False) -> Path:
        """Write the run folder, whole or not at all. Returns its path.

        Raises InputError where the folder cannot be written, holds files of others, or holds other results and
        `overwrite` is False (`scenarios.runs.storage.output` has the rule).
        """
        target = Path(folder)
        with output(target, overwrite=overwrite, expected=same_scenario(lambda: self.scenario_yaml)) as inside:
            self.write(inside)
        return target

    def write(self, folder: Path) -> None:
        """Write the files of a run into an existing folder. Raises InputError where the disk does not take them."""
        write_run(
            folder,
            scenario_yaml=self.scenario_yaml,
            summary=self.summary,
            records=self.records,
            decisions=self.decisions,
            notes=self.notes,
            cuts=self.scenario.measure.window(self.records),
            prefixes=shared_prefixes(self.workload, self.records),
        )


def _frame(table: Mapping[str, Column]) -> pd.DataFrame:
    import pandas as pd

    return pd.DataFrame(dict(table))
