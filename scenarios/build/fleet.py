"""From the fleet of a scenario to what the simulator takes: groups of replicas, and a router."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from scenarios.build.groups import Group, groups_of
from scenarios.build.parts import Parts, build
from scenarios.schema.scenario import Scenario
from scenarios.streams import stream
from simulator.errors import InputError
from simulator.fleet.group import ReplicaGroup
from simulator.fleet.routers import load_router

if TYPE_CHECKING:
    from simulator.fleet.router import Router


@dataclass(frozen=True, slots=True)
class BuiltGroup:
    """A group with its parts."""

    group: Group
    parts: Parts

    @property
    def replicas(self) -> ReplicaGroup:
        """What the simulator takes."""
        parts = self.parts
        return ReplicaGroup(
            parts.make_policy,
            parts.kv,
            parts.cost,
            parts.swap_s_per_block,
            parts.swap_overlap,
            parts.group_cost,
            make_blocks=parts.make_blocks,
            replicas=self.group.replicas,
            name=self.group.name,
            max_queued_requests=parts.max_queued_requests,
        )


def build_fleet(scenario: Scenario) -> tuple[BuiltGroup, ...]:
    """Every group with its policy, memory and costs. Raises InputError where they do not fit together."""
    return tuple(BuiltGroup(group, build(group.scenario)) for group in groups_of(scenario))


def build_router(scenario: Scenario) -> Router:
    """A new router with its parameters and random numbers, which depend on the scenario's seed alone."""
    config = scenario.routing
    try:
        return load_router(config.kind, config.parameters, generator=stream(scenario.seed, "", "router"))
    except InputError as error:
        raise error if error.file else scenario.error("router", error.message, error.hint) from None
