"""The parts of a replica, built from a scenario: policy, KV memory, step costs, and the experts that it shares."""

from __future__ import annotations

from collections.abc import Callable, Collection
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from scenarios.assembly.adapters import adapter_bytes, build_adapters
from scenarios.assembly.combined import check_parts, parts_of
from scenarios.assembly.encoder import build_encoder
from scenarios.assembly.engine_policy import build_policy, policy_label
from scenarios.assembly.kv_groups import blocks_of, cache_of, plan_of
from scenarios.assembly.offloading import build_offloading, connected_blocks
from scenarios.assembly.pipeline import build_pipeline, check_pipeline, pipeline_cache
from scenarios.assembly.speculation import build_drafter, build_speculation, drafter_memory
from scenarios.assembly.unused_keys import caches_prefixes, check_overlap
from scenarios.schema.engine import DEFAULT_BUDGET
from scenarios.schema.scenario import Scenario
from scenarios.servers import server_of
from simulator.division import cdiv
from simulator.engine.admission import NO_CAPS, QueueCaps
from simulator.errors import InputError
from simulator.goes_with import KV_GROUPS, Part
from simulator.hardware.kv import KVCache, MemorySettings, swap_s_per_block
from simulator.memory.blocks import BlockLedger, BlockManager, KVBlocks
from simulator.memory.prefix_cache import PrefixCache
from simulator.memory.prefix_ledger import PrefixLedger
from simulator.memory.radix_cache import RadixCache
from simulator.policies import built_in_policies, policy_class
from simulator.policy_traits import OptionalMembers, Traits
from simulator.timing.added import RanksWithAddition, WithAddition
from simulator.timing.drafter import WithDrafter, WithDrafters

if TYPE_CHECKING:
    from simulator.engine.parts.connected_memory import MakeConnector
    from simulator.hardware.kv_plan import KVPlan
    from simulator.hardware.models import Model
    from simulator.plan import Policy
    from simulator.speculative.speculation import Speculation
    from simulator.timing.cost import CostModel, GroupCost
    from simulator.timing.pipeline_cost import PipelineCost

_KEY = "hardware.enable_expert_parallel"
STATIC = "hardware.mem_fraction_static"


@dataclass(frozen=True, slots=True)
class ReplicaParts:
    """The parts of a simulation beside the workload. `make_policy` makes each replica one of its own."""

    make_policy: Callable[[], Policy]
    kv: KVCache
    cost: CostModel
    swap_s_per_block: float
    make_blocks: Callable[[int, int], KVBlocks]
    make_blocks_by_id: Callable[[int, int], KVBlocks]  # the same with ids, for a device
    swap_overlap: bool = False
    group_cost: GroupCost | None = None
    max_queued_requests: int | None = None
    queue_caps: QueueCaps = NO_CAPS
    speculation: Speculation | None = None
    kv_plan: KVPlan | None = None  # where the cache has several KV groups
    pipeline: PipelineCost | None = None
    connector: MakeConnector | None = None


def build(scenario: Scenario, beside: Collection[Part] = ()) -> ReplicaParts:
    """Build policy, memory and costs; `beside` are the parts that its fleet gives the replica.

    Raises InputError where they do not fit together.
    """
    policy, parts = build_policy(scenario), parts_of(scenario, beside)
    check_pipeline(scenario)
    check_parts(scenario, parts)
    kv, groups = _build_kv(scenario, policy, parts)
    check_parts(scenario, parts if groups is None else [*parts, KV_GROUPS])
    swap_s = swap_s_per_block(kv, scenario.resolve_gpu())
    check_overlap(scenario)
    cost, (make_blocks, make_blocks_by_id) = scenario.cost.build(scenario), _build_blocks(scenario)
    if groups is not None:
        make_blocks = blocks_of(scenario, groups)
    group_cost = build_group_cost(scenario, cost)
    speculation = build_speculation(scenario)
    drafter, adapters = build_drafter(scenario), build_adapters(scenario)
    pipeline = build_pipeline(scenario, cost, adapters)
    connector = build_offloading(scenario, kv)
    if connector is not None and groups is None:
        make_blocks = make_blocks_by_id = connected_blocks(scenario.engine.block_size)
    if drafter is not None:
        cost = WithDrafter(cost, drafter)
        group_cost = None if group_cost is None else WithDrafters(group_cost, drafter)
    for part in (adapters, build_encoder(scenario)):
        if part is not None:
            cost = WithAddition(cost, part)
            group_cost = None if group_cost is None else RanksWithAddition(group_cost, part)
    return ReplicaParts(
        lambda: deepcopy(policy),
        kv,
        cost if pipeline is None else pipeline,
        swap_s,
        make_blocks,
        make_blocks_by_id,
        scenario.engine.swap_overlap,
        group_cost,
        scenario.engine.max_queued_requests,
        QueueCaps(scenario.engine.max_num_queued_reqs, scenario.engine.max_num_queued_tokens),
        speculation,
        kv_plan=groups,
        pipeline=pipeline,
        connector=connector,
    )


def _build_blocks(scenario: Scenario) -> tuple[Callable[[int, int], KVBlocks], Callable[[int, int], KVBlocks]]:
    """Return the makers of blocks as counts and by id, with a prefix cache where the scenario asks for one."""
    engine = scenario.engine
    if not engine.enable_prefix_caching:
        return BlockLedger, BlockManager
    if not caches_prefixes(engine.policy):
        able = ", ".join(name for name in built_in_policies() if caches_prefixes(name))
        what = f"the policy {policy_label(engine.policy)} does not reckon with a prefix cache"
        raise scenario.error("engine.enable_prefix_caching", what, f"these do: {able}; or leave the key out")
    features = Traits.of(policy_class(engine.policy))
    counts, by_id = (RadixCache, RadixCache) if features.has_radix_tree else (PrefixLedger, PrefixCache)
    return partial(counts, block_size=engine.block_size), partial(by_id, block_size=engine.block_size)


def _has_flag(policy: str, key: str) -> bool:
    launch = server_of(policy).launch
    return launch is not None and any(flag.key == key for flag in launch.flags)


def _build_kv(scenario: Scenario, policy: Policy, parts: Collection[Part]) -> tuple[KVCache, KVPlan | None]:
    """Build the KV cache, and its groups where it has several."""
    hardware = scenario.hardware
    if hardware.mem_fraction_static is not None and not _has_flag(scenario.engine.policy, STATIC):
        what = f"mem_fraction_static is SGLang's share of memory, not that of {scenario.engine.policy}"
        raise scenario.error(STATIC, what, "hardware.gpu_memory_utilization")
    try:
        settings = memory_settings(scenario, policy)
        if (plan := plan_of(scenario, settings, parts)) is not None:
            return cache_of(plan, hardware.swap_space_gib), plan
        if hardware.pipeline_parallel > 1:
            return pipeline_cache(scenario, settings), None
        return settings.kv_cache(hardware.swap_space_gib, hardware.num_gpu_blocks), None
    except InputError as error:
        raise scenario.error("hardware", error.message, error.hint) from None


def memory_settings(scenario: Scenario, policy: Policy) -> MemorySettings:
    """Return what decides a replica's KV cache: it leaves memory for the activations of a step of the policy's budget.

    InputError for a value out of range.
    """
    engine, hardware, drafter = scenario.engine, scenario.hardware, drafter_memory(scenario)
    budget = OptionalMembers.of(policy).max_num_batched_tokens
    return MemorySettings(
        held_model(scenario),
        scenario.resolve_gpu(),
        hardware.tensor_parallel,
        hardware.gpu_memory_utilization,
        engine.block_size,
        budget if isinstance(budget, int) else engine.parameter("max_num_batched_tokens", DEFAULT_BUDGET),
        drafter.weights + adapter_bytes(scenario),
        drafter.kv_per_token,
        hardware.mem_fraction_static,
    )


def held_model(scenario: Scenario) -> Model:
    """Return the model as one replica holds it: with its share of the experts, where they are shared.

    Where the share is no whole number some hold one more, as vLLM's `determine_expert_map` gives the first ones.
    """
    model = scenario.resolve_model()
    if not scenario.hardware.enable_expert_parallel or not model.experts:
        return model
    return replace(model, experts=max(cdiv(model.experts, scenario.replicas), model.active_experts))


def build_group_cost(scenario: Scenario, cost: CostModel) -> GroupCost | None:
    """Build the cost of the replicas' common steps; None where they have none. Raises InputError with the key."""
    if not scenario.hardware.enable_expert_parallel:
        if scenario.engine.parameter("dp_sync_interval") is not None:
            what = "only replicas that share experts step together, and agree when to stop"
            raise scenario.error("engine.dp_sync_interval", what, f"give {_KEY}: true, or leave the key out")
        return None
    from simulator.timing.profile import ProfileCost
    from simulator.timing.profile.expert_parallel import ExpertParallelCost
    from simulator.timing.roofline_cost import Roofline
    from simulator.timing.roofline_ranks import RooflineRanks
    from simulator.timing.windowed_roofline import WindowedRoofline

    model = scenario.resolve_model()
    if not model.experts:
        raise scenario.error(_KEY, f"the model {model.name} has no experts to share", "leave the key out")
    if scenario.replicas < 2 and scenario.hardware.tensor_parallel > 1:
        return None  # the GPUs of the one replica hold whole experts, which its cost knows
    if scenario.replicas < 2:
        raise scenario.error(_KEY, "one replica has no other to share experts with", "give replicas: 2 or more")
    if model.experts < scenario.replicas:
        what = f"{scenario.replicas} replicas are more than the {model.experts} experts that they would share"
        raise scenario.error(_KEY, what, f"give replicas: {model.experts} or fewer")
    if not isinstance(cost, (ProfileCost, Roofline, WindowedRoofline)):
        what = "the steps of replicas that share experts need a profile or the roofline"
        raise scenario.error(_KEY, what, "cost: {kind: auto}")
    copies = model.active_experts if server_of(scenario.engine.policy).all_to_all else None
    if not isinstance(cost, ProfileCost):
        return RooflineRanks.of(cost, scenario.replicas, copies)
    try:
        return ExpertParallelCost.of(cost, model.hidden, scenario.resolve_gpu(), scenario.replicas, copies)
    except InputError as error:
        raise scenario.error(_KEY, error.message, error.hint) from None
