"""The result of a run in Python: its summary, its tables as pandas data frames, and the basis of its figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scenarios.assembly.engines import Group, groups_of, policies_label, policy_label
from scenarios.runs.storage.output import output, same_scenario
from scenarios.runs.storage.run_folder import write_run
from scenarios.runs.storage.run_tables import Column, replica_columns, request_columns, step_columns
from scenarios.schema.cost import LinearCostConfig, OwnCostConfig
from scenarios.schema.left_out import compared
from scenarios.schema.scenario import Scenario
from scenarios.servers import server_of
from scenarios.show import Shown, html_table, one_line, picture
from scenarios.version import __version__
from simulator.results.records import Records
from simulator.results.shared_prefixes import shared_prefixes
from simulator.timing.cost import CostModel
from simulator.workload import Workload

if TYPE_CHECKING:
    import pandas as pd

    from scenarios.bound.bound import Bounds
    from scenarios.show import Picture
    from simulator.timing.profile import Profile

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


# The basis of a run's figures: the last key of summary.json, and a line in the head of every report.
#
# Nothing here tells when or on which machine the simulation ran: equal runs have equal provenance.

PROVENANCE = "provenance"
"""The key of summary.json."""

GIVEN, NOT_VALIDATED, NOT_TESTED = "given", "not validated", "not tested"
"""The error of a linear cost (its coefficients are the user's), of a roofline, of a profile without held-out rows."""
GIVEN_BY = "the scenario"
"""The source of figures of the host and the front end that are no engine's."""


def provenance(scenario: Scenario, costs: Sequence[CostModel]) -> dict[str, Any]:
    """Return model, GPU, parallelism, step costs with their known error, policy, seed and version, as JSON has them.

    `costs` has an entry for each group of the fleet; the figures at the top are the first group's.
    """
    groups = groups_of(scenario)
    each = [_of_group(group, cost) for group, cost in zip(groups, costs, strict=True)]
    return {
        "scenario": scenario.name,
        **each[0],
        "policy": policies_label(scenario),
        "replicas": scenario.num_replicas,
        "cost": each[0]["cost"],
        "seed": scenario.seed,
        "version": __version__,
        **({"fleet": [{"name": g.name, **of} for g, of in zip(groups, each, strict=True)]} if len(each) > 1 else {}),
    }


def _of_group(group: Group, cost: CostModel) -> dict[str, Any]:
    scenario = group.scenario
    return {
        "policy": policy_label(scenario.engine.policy),
        "model": scenario.resolve_model().name,
        "gpu": scenario.resolve_gpu().name,
        "tensor_parallel": scenario.hardware.tensor_parallel,
        **({"pipeline_parallel": stages} if (stages := scenario.hardware.pipeline_parallel) > 1 else {}),
        "replicas": group.replicas,
        "cost": {"kind": _kind(scenario), **_cost(scenario, cost)},
        **_around(scenario, cost),
        **({} if (told := compared(scenario)) is None else {"defaults": told}),
    }


def _kind(scenario: Scenario) -> str:
    """Return the kind of cost; of a user's own the class without the folder, which differs between machines."""
    own = scenario.resolve_cost()
    return f"{own.file.name}:{own.kind.rpartition(':')[2]}" if isinstance(own, OwnCostConfig) else own.kind


def _around(scenario: Scenario, cost: CostModel) -> dict[str, Any]:
    """Return the time that the host adds to a step and the front end to a latency, each with its source, if any."""
    found: dict[str, Any] = {}
    server = server_of(scenario.engine.policy)
    if scenario.host is not None or scenario.cost.takes_host(scenario):
        host = scenario.resolve_host()
        source = host.source or GIVEN_BY
        found["host"] = {"step_s": host.step_s, "per_seq_s": host.per_seq_s, "from": source}
    elif (own := _profile(scenario, cost)) is not None:
        source = str(own.document["host"].get("from", ""))
        found["host"] = {"step_s": own.host_s, "per_seq_s": own.host_per_seq_s, "from": source}
    if scenario.front_end is not None:
        front_end = scenario.resolve_front_end()
        source = server.source_of_front_end(front_end) or GIVEN_BY
        found["front_end"] = {**front_end.figures(), "from": source}
    return found


def _profile(scenario: Scenario, cost: CostModel) -> Profile | None:
    """Return the profile that prices the steps; None for another cost, which does not load the profiles' modules."""
    if scenario.resolve_cost().kind != "profile":
        return None
    from simulator.timing.profile import ProfileCost

    return cost.profile if isinstance(cost, ProfileCost) else None


def _cost(scenario: Scenario, cost: CostModel) -> dict[str, Any]:
    """Return the profile's name, the known error of its step times, and the source of each of its parts."""
    profile = _profile(scenario, cost)
    if profile is None:
        given = isinstance(scenario.resolve_cost(), (LinearCostConfig, OwnCostConfig))
        return {"error": GIVEN if given else NOT_VALIDATED}
    from scenarios.profiles import held_out_mape
    from simulator.timing.tables import parts_of
    from simulator.timing.tables.table_schema import fitted_parts

    errors = {f"{kind}_mape_percent": percent for kind, percent in held_out_mape(profile).items()}
    told = {
        name: {part.name: f"{part.how}, {part.words}" if part.words else part.how for part in parts}
        for name, parts in (("composed", parts_of(profile)), ("fitted", fitted_parts(profile)))
        if parts
    }
    return {"profile": profile.name, "error": errors or NOT_TESTED, **told}
