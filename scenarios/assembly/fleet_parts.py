"""Build the simulator's groups of replicas, link and router from the fleet of a scenario."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from math import inf
from typing import TYPE_CHECKING

from scenarios.assembly.combined import check_parts, parts_of_group
from scenarios.assembly.groups import Group, groups_of
from scenarios.assembly.pulling import build_pulling, failing_loads
from scenarios.assembly.replica_parts import ReplicaParts, build
from scenarios.schema.scenario import Scenario
from scenarios.streams import stream
from simulator.errors import InputError
from simulator.fleet.group import ReplicaGroup
from simulator.fleet.link import LinkSpeed
from simulator.fleet.roles import is_disaggregated
from simulator.fleet.router import RouterFeatures
from simulator.fleet.routers import load_router
from simulator.goes_with import APART, API_SERVERS, TOKEN_CAP, WHOLE_REQUESTS
from simulator.timing.scaled import Scaled, ScaledGroup

if TYPE_CHECKING:
    from simulator.fleet.flow_control import FlowControl
    from simulator.fleet.router import Router


@dataclass(frozen=True, slots=True)
class BuiltGroup:
    """A group with its parts."""

    group: Group
    parts: ReplicaParts

    def at_step_time(self, factor: float) -> BuiltGroup:
        """Return the group with steps that take `factor` times as long."""
        cost, group_cost = self.parts.cost, self.parts.group_cost
        scaled = None if group_cost is None else ScaledGroup(group_cost, factor)
        pipe = None if self.parts.pipeline is None else self.parts.pipeline.scaled(factor)
        whole = Scaled(cost, factor) if pipe is None else pipe
        return replace(self, parts=replace(self.parts, cost=whole, group_cost=scaled, pipeline=pipe))

    @property
    def replicas(self) -> ReplicaGroup:
        """Return the group as the simulator takes it."""
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
            queue_caps=parts.queue_caps,
            autoscaling=None if (rule := self.group.autoscaling) is None else rule.rule(),
            initial_replicas=self.group.scenario.replicas,
            role=self.group.role,
            block_bytes=parts.kv.bytes_per_block * self.group.scenario.hardware.tensor_parallel,
            speculation=parts.speculation,
            has_kv_groups=parts.kv_plan is not None,
            pipeline=parts.pipeline,
            connector=parts.connector,
        )


def build_fleet(scenario: Scenario) -> tuple[BuiltGroup, ...]:
    """Build every group: policy, memory and costs. Raises InputError where they do not fit together."""
    fleet = tuple(
        BuiltGroup(group, build_pulling(scenario, group, partial(build, beside=parts_of_group(scenario, group))))
        for group in groups_of(scenario)
    )
    try:
        apart = is_disaggregated([built.replicas for built in fleet])
    except InputError as error:
        raise scenario.error("fleet", error.message, error.hint) from None
    models = {repr(built.group.scenario.resolve_model()) for built in fleet}
    if apart and len(models) > 1:
        what = "groups that prefill and groups that decode have different models"
        raise scenario.error("fleet", what, "the KV of one is of no use to another")
    return fleet


def build_link(scenario: Scenario) -> LinkSpeed | None:
    """Build the link that KV moves over; None where the scenario has none."""
    link = scenario.kv_transfer
    return None if link is None else LinkSpeed(link.bandwidth_gb_s * 1e9, link.latency_s, failing_loads(scenario))


def build_flow_control(scenario: Scenario) -> FlowControl | None:
    """Build the flow control of the gateway; None where the scenario has none."""
    given = scenario.flow_control
    if given is None:
        return None
    from simulator.fleet.flow_control import FlowControl

    return FlowControl(**{**given.model_dump(), "ttl_s": inf if given.ttl_s is None else given.ttl_s})


def build_router(scenario: Scenario) -> Router:
    """Build a router. Its random numbers depend on the scenario's seed alone. InputError for one that cannot serve."""
    config = scenario.routing
    try:
        router = load_router(config.kind, config.parameters, generator=stream(scenario.seed, "", "router"))
    except InputError as error:
        raise error if error.file else scenario.error("router", error.message, error.hint) from None
    if config.regret:
        from simulator.fleet.regret import WithRegret

        router = WithRegret(router)
    features = RouterFeatures.of(router)
    parts = [APART] if any(group.role != "both" for group in scenario.fleet or ()) else []
    parts += [WHOLE_REQUESTS] if features.hears_ends or features.tells_regret else []
    if getattr(router, "non_cached_tokens", 0) and getattr(scenario.kv_transfer, "connector", None) is None:
        what = "only decoding replicas that pull compute what is left of a prompt by themselves"
        raise scenario.error("router.non_cached_tokens", what, "a fleet with roles, and kv_transfer.connector: nixl")
    capped = any(group.scenario.engine.max_num_queued_tokens is not None for group in groups_of(scenario))
    parts += [TOKEN_CAP] if capped else []
    parts += [API_SERVERS] if getattr(router, "api_server_count", 1) > 1 else []
    check_parts(scenario, parts)
    return router
