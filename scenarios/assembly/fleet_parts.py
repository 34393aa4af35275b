"""Build the simulator's groups of replicas, link and router from the fleet of a scenario."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import inf
from typing import TYPE_CHECKING

import numpy as np

from scenarios.assembly.engines import Group, groups_of
from scenarios.assembly.replica_parts import ReplicaParts, build, check_parts, parts_of_group
from scenarios.random_draws import stream
from scenarios.schema.scenario import Scenario
from simulator.errors import InputError
from simulator.fleet.cluster import is_disaggregated
from simulator.fleet.dispatch import LinkSpeed
from simulator.fleet.group import ReplicaGroup
from simulator.fleet.router import RouterFeatures
from simulator.fleet.routers import load_router
from simulator.goes_with import APART, API_SERVERS, TOKEN_CAP, WHOLE_REQUESTS
from simulator.memory.blocks import Cache
from simulator.metrics.part_metrics import foresight
from simulator.metrics.window import measured_window
from simulator.request import Request
from simulator.results.records import Records
from simulator.timing.pipeline_cost import Scaled, ScaledGroup
from simulator.workload import Workload

if TYPE_CHECKING:
    from simulator.fleet.gateway import FlowControl
    from simulator.fleet.router import Router


# Decoding groups that pull by the rules of vLLM's connector, built from `kv_transfer.connector`.

if TYPE_CHECKING:
    from simulator.engine.parts.connected_memory import Connected
    from simulator.engine.parts.pull import Pull, PullConfig

    Fails = Callable[[int], bool]


@dataclass(frozen=True, slots=True)
class MakePull:
    """Makes a decoding replica's connector; the fleet gives it its link."""

    config: PullConfig

    def __call__(self, blocks: Connected, overlaps: bool) -> Pull:
        from simulator.engine.parts.connected_memory import ConnectedBlocks
        from simulator.engine.parts.pull import Pull

        assert isinstance(blocks, ConnectedBlocks)
        return Pull(self.config, {}, blocks.block_size, overlaps=overlaps)


@dataclass(frozen=True, slots=True)
class Failing:
    """Says of each request whether its load fails: a draw of its own, whatever else happens."""

    seed: int
    rate: float

    def __call__(self, row: int) -> bool:
        return bool(np.random.Generator(np.random.Philox(key=[self.seed, row])).random() < self.rate)


def failing_loads(scenario: Scenario) -> Fails | None:
    """Which loads fail; None where none does."""
    link = scenario.kv_transfer
    return Failing(scenario.seed, link.failure_rate) if link is not None and link.failure_rate else None


def build_pulling(scenario: Scenario, group: Group, build: Callable[[Scenario], ReplicaParts]) -> ReplicaParts:
    """Build a group's parts, with a connector where it decodes what it pulls."""
    link, own = scenario.kv_transfer, group.scenario
    if link is None or link.connector is None or group.role != "decode":
        return build(own)
    from simulator.engine.parts.connected_memory import ConnectedBlocks
    from simulator.engine.parts.pull import PullConfig

    caches, engine = own.engine.enable_prefix_caching, own.engine
    parts = build(own)
    size = parts.kv.bytes_per_block * own.hardware.tensor_parallel
    config = PullConfig(
        "decode", size, link.bandwidth_gb_s * 1e9, link.latency_s, kv_load_failure_policy=link.kv_load_failure_policy
    )
    blocks = partial(ConnectedBlocks, block_size=engine.block_size, caches_prefixes=caches)
    return replace(parts, connector=MakePull(config), make_blocks=blocks)


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
    from simulator.fleet.gateway import FlowControl

    return FlowControl(**{**given.model_dump(), "ttl_s": inf if given.ttl_s is None else given.ttl_s})


def build_router(scenario: Scenario) -> Router:
    """Build a router. Its random numbers depend on the scenario's seed alone. InputError for one that cannot serve."""
    config = scenario.routing
    try:
        router = load_router(config.kind, config.parameters, generator=stream(scenario.seed, "", "router"))
    except InputError as error:
        raise error if error.file else scenario.error("router", error.message, error.hint) from None
    if config.regret:
        from simulator.fleet.dispatch import WithRegret

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


# What prefix caches that know the future could have found, beside the regret of a router.


def foreseen(
    scenario: Scenario, fleet: Sequence[BuiltGroup], records: Records, workload: Workload, **cuts: float
) -> dict[str, float]:
    """The bounds on prefix hits by the names of summary.json, where the router's regret is asked for.

    Nothing where a group caches nothing, keeps several kinds of KV, or has tiers behind its GPUs' memory.
    """
    if not scenario.routing.regret or not all(_is_plain(built) for built in fleet):
        return {}
    found = foresight(records, _requests(records, workload), measured_window(records, **cuts).measured)
    if found is None:
        return {}
    shares = {
        "belady_hit_rate": found.own,
        "belady_pooled_hit_rate": found.pooled,
        "unlimited_hit_rate": found.unlimited,
    }
    return {name: share for name, share in shares.items() if share is not None}


def _is_plain(built: BuiltGroup) -> bool:
    group = built.replicas
    return group.connector is None and not group.has_kv_groups and isinstance(group.make_blocks(1, 0), Cache)


def _requests(records: Records, workload: Workload) -> dict[str, Request]:
    """All requests that the run may have had, by name; of users in a closed loop as many as came at all."""
    sources = [workload, *(loop.draw(loop.requests or len(records.requests.row)) for loop in workload.loops)]
    return {request.request_id: request for source in sources for request in source.requests()}
