"""The parts of a replica, built from a scenario: policy, KV memory and step costs."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from scenarios.assembly.engine_policy import build_policy, policy_label
from scenarios.assembly.shared_experts import build_group_cost, held_model
from scenarios.assembly.unused_keys import caches_prefixes, check_overlap
from scenarios.schema.engine import DEFAULT_BUDGET
from scenarios.schema.scenario import Scenario
from simulator.errors import InputError
from simulator.hardware.kv import KVCache, MemorySettings, swap_s_per_block
from simulator.memory.blocks import BlockLedger, BlockManager, KVBlocks
from simulator.memory.prefix_cache import PrefixCache
from simulator.memory.prefix_ledger import PrefixLedger
from simulator.memory.radix_cache import RadixCache
from simulator.plan import OptionalMembers, PolicyFeatures
from simulator.policies import built_in_policies, policy_class

if TYPE_CHECKING:
    from simulator.plan import Policy
    from simulator.timing.cost import CostModel, GroupCost


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


def build(scenario: Scenario) -> ReplicaParts:
    """Build policy, memory and costs. Raises InputError where they do not fit together."""
    policy = build_policy(scenario)
    kv = _build_kv(scenario, policy)
    swap_s = swap_s_per_block(kv, scenario.resolve_gpu())
    check_overlap(scenario)
    cost, (make_blocks, make_blocks_by_id) = scenario.cost.build(scenario), _build_blocks(scenario)
    group_cost = build_group_cost(scenario, cost)
    return ReplicaParts(
        lambda: deepcopy(policy),
        kv,
        cost,
        swap_s,
        make_blocks,
        make_blocks_by_id,
        scenario.engine.swap_overlap,
        group_cost,
        scenario.engine.max_queued_requests,
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
    features = PolicyFeatures.of(policy_class(engine.policy))
    counts, by_id = (RadixCache, RadixCache) if features.has_radix_tree else (PrefixLedger, PrefixCache)
    return partial(counts, block_size=engine.block_size), partial(by_id, block_size=engine.block_size)


def _build_kv(scenario: Scenario, policy: Policy) -> KVCache:
    """Build the KV cache. It leaves memory for the activations of a step of the policy's token budget."""
    engine, hardware = scenario.engine, scenario.hardware
    budget = OptionalMembers.of(policy).max_num_batched_tokens
    try:
        settings = MemorySettings(
            held_model(scenario),
            scenario.resolve_gpu(),
            hardware.tensor_parallel,
            hardware.gpu_memory_utilization,
            engine.block_size,
            budget if isinstance(budget, int) else engine.parameter("max_num_batched_tokens", DEFAULT_BUDGET),
        )
        return settings.kv_cache(hardware.swap_space_gib, hardware.num_gpu_blocks)
    except InputError as error:
        raise scenario.error("hardware", error.message, error.hint) from None
