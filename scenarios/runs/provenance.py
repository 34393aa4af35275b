"""What a run's figures rest on: the last key of summary.json, and a line in the head of every report.

Nothing here tells when or on which machine the simulation ran: equal runs have equal provenance.
"""

from __future__ import annotations

from typing import Any

from scenarios.build.parts import policy_label
from scenarios.profiles import held_out_mape
from scenarios.schema.scenario import Scenario
from scenarios.version import __version__
from simulator.timing.cost import CostModel
from simulator.timing.profile import ProfileCost

PROVENANCE = "provenance"
"""The key of summary.json."""

GIVEN, NOT_VALIDATED, NOT_TESTED = "given", "not validated", "not tested"
"""The error of a linear cost (its coefficients are the user's), of a roofline, of a profile without held-out rows."""


def provenance(scenario: Scenario, cost: CostModel) -> dict[str, Any]:
    """Model, GPU and parallelism, step costs with their known error, policy, seed and version, as JSON takes them."""
    hardware = scenario.hardware
    return {
        "scenario": scenario.name,
        "policy": policy_label(scenario.engine.policy),
        "model": scenario.resolve_model().name,
        "gpu": scenario.resolve_gpu().name,
        "tensor_parallel": hardware.tensor_parallel,
        "replicas": scenario.replicas,
        "cost": {"kind": scenario.cost.kind, **_cost(scenario, cost)},
        "seed": scenario.seed,
        "version": __version__,
    }


def _cost(scenario: Scenario, cost: CostModel) -> dict[str, Any]:
    """The profile's name, and how far step times are known to be off."""
    if isinstance(cost, ProfileCost):
        errors = {f"{kind}_mape_percent": percent for kind, percent in held_out_mape(cost.profile).items()}
        return {"profile": cost.profile.name, "error": errors or NOT_TESTED}
    return {"error": GIVEN if scenario.cost.kind == "linear" else NOT_VALIDATED}
