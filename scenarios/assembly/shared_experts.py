"""Data-parallel replicas that share the experts of a mixture: the model a replica holds, the cost of common steps."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from simulator.errors import InputError

if TYPE_CHECKING:
    from scenarios.schema.scenario import Scenario
    from simulator.hardware.models import Model
    from simulator.timing.cost import CostModel, GroupCost

_KEY = "hardware.enable_expert_parallel"


def held_model(scenario: Scenario) -> Model:
    """Return the model as one replica holds it: with its share of the experts, where they are shared."""
    model = scenario.resolve_model()
    if not scenario.hardware.enable_expert_parallel or not model.experts:
        return model
    return replace(model, experts=max(model.experts // scenario.replicas, model.active_experts))


def build_group_cost(scenario: Scenario, cost: CostModel) -> GroupCost | None:
    """Build the cost of the replicas' common steps; None where they have none. Raises InputError with the key."""
    if not scenario.hardware.enable_expert_parallel:
        return None
    from simulator.timing.profile import ProfileCost
    from simulator.timing.profile.expert_parallel import ExpertParallelCost

    model = scenario.resolve_model()
    if not model.experts:
        raise scenario.error(_KEY, f"the model {model.name} has no experts to share", "leave the key out")
    if scenario.replicas < 2:
        raise scenario.error(_KEY, "one replica has no other to share experts with", "give replicas: 2 or more")
    if model.experts % scenario.replicas:
        what = f"{model.experts} experts cannot be shared evenly by {scenario.replicas} replicas"
        raise scenario.error(_KEY, what, None)
    if not isinstance(cost, ProfileCost):
        raise scenario.error(_KEY, "the steps of replicas that share experts need a profile", "cost: {kind: profile}")
    if scenario.engine.parameter("preemption_mode", "recompute") != "recompute":
        raise scenario.error(_KEY, "replicas that share experts do not swap", "engine.preemption_mode: recompute")
    try:
        return ExpertParallelCost.of(cost, model.hidden, scenario.resolve_gpu(), scenario.replicas)
    except InputError as error:
        raise scenario.error(_KEY, error.message, error.hint) from None
