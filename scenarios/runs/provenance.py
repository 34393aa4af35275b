"""The basis of a run's figures: the last key of summary.json, and a line in the head of every report.

Nothing here tells when or on which machine the simulation ran: equal runs have equal provenance.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from scenarios.assembly.engine_policy import policies_label, policy_label
from scenarios.assembly.groups import Group, groups_of
from scenarios.schema.cost import LinearCostConfig, OwnCostConfig
from scenarios.schema.left_out import compared
from scenarios.schema.scenario import Scenario
from scenarios.servers import server_of
from scenarios.version import __version__
from simulator.timing.cost import CostModel

if TYPE_CHECKING:
    from simulator.timing.profile import Profile

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
