"""The parts of a replica, built from a scenario: policy, KV memory, step costs, shared experts; none that clash."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from scenarios.assembly.engines import build_policy, caches_prefixes, check_overlap, policy_label, takes_ahead
from scenarios.assembly.kv_memory import blocks_of, build_offloading, cache_of, connected_blocks, plan_of
from scenarios.assembly.speculation import build_drafter, build_speculation, drafter_memory, drafts_of
from scenarios.schema.cost import ProfileCostConfig, RooflineCostConfig
from scenarios.schema.engine import DEFAULT_BUDGET
from scenarios.schema.host import PipelineLink
from scenarios.schema.scenario import Scenario
from scenarios.servers import server_of
from simulator import goes_with
from simulator.division import cdiv
from simulator.engine.admission import NO_CAPS, QueueCaps
from simulator.errors import InputError
from simulator.goes_with import KV_GROUPS, Part
from simulator.hardware.kv import KVCache, MemorySettings, swap_s_per_block
from simulator.hardware.stages import pipeline_kv, stage_memories, stages_of
from simulator.memory.blocks import BlockLedger, BlockManager, KVBlocks
from simulator.memory.ledger import PrefixLedger
from simulator.memory.prefix_cache import PrefixCache
from simulator.memory.radix_cache import RadixCache
from simulator.policies import REAL_POLICIES, built_in_policies, policy_class
from simulator.policy_traits import OptionalMembers, Traits
from simulator.timing.added import EncoderTime, Loras, RanksWithAddition, WithAddition, WithDrafter, WithDrafters
from simulator.timing.cost import CostModel
from simulator.timing.formula_cost import ACTIVATION_BYTES, LINK_EFFICIENCY
from simulator.timing.pipeline_cost import PipelineCost, cost_of_stage

if TYPE_CHECKING:
    from scenarios.assembly.engines import Group
    from simulator.engine.parts.connected_memory import MakeConnector
    from simulator.hardware.kv_plan import KVPlan
    from simulator.hardware.models import Model
    from simulator.plan import Policy
    from simulator.speculative import Speculation
    from simulator.timing.cost import GroupCost


# The parts of a scenario's servers, and the refusal of two that cannot be combined, at the key in the scenario.
#
# `simulator.goes_with` has the table. A model's KV groups are no part here: where they cannot be combined with
# another part, all layers keep all tokens (`scenarios.assembly.kv_memory`).

_HAS: Mapping[Part, Callable[[Scenario], object]] = {
    goes_with.DRAFTS: drafts_of,
    goes_with.DRAFTS_AHEAD: lambda given: drafts_of(given) and takes_ahead(given.engine.policy),
    goes_with.SEVERAL_MODULES: lambda given: _modules(given) > 1,
    goes_with.OWN_HASHES: lambda given: getattr(drafts_of(given), "disable_lookahead_block_hashes", False),
    goes_with.ADAPTERS: lambda given: given.engine.parameter("max_loras"),
    goes_with.DRAFTED_ADAPTERS: lambda given: given.engine.parameter("max_loras") and drafts_of(given),
    goes_with.IMAGES: lambda given: given.engine.parameter("max_image_embeddings") is not None,
    goes_with.CADENCE: lambda given: (given.engine.parameter("prefill_schedule_interval") or 1) > 1,
    goes_with.OTHER_ORDER: lambda given: given.engine.parameter("order") not in ("fcfs", "priority"),
    goes_with.PREFIX_CACHE: lambda given: given.engine.enable_prefix_caching,
    goes_with.OTHER_PREEMPTION: lambda given: given.engine.parameter("preemption_mode", "recompute") != "recompute",
    goes_with.SWAP_OVERLAP: lambda given: given.engine.swap_overlap,
    goes_with.REAL: lambda given: given.engine.policy in REAL_POLICIES,
    goes_with.SERVER_CAPS: lambda given: _has_caps(given),
    goes_with.SWAP_SPACE: lambda given: given.hardware.swap_space_gib,
    goes_with.PIPELINE: lambda given: given.hardware.pipeline_parallel > 1,
    goes_with.EXPERTS: lambda given: given.hardware.enable_expert_parallel,
    goes_with.RANKS: lambda given: given.hardware.enable_expert_parallel and given.replicas > 1,
    goes_with.OFFLOAD: lambda given: given.hardware.kv_offload,
    goes_with.TIERS: lambda given: given.hardware.kv_offload and given.hardware.kv_offload.tiers,
    goes_with.THRESHOLD: lambda given: given.hardware.kv_offload and given.hardware.kv_offload.store_threshold > 1,
}
"""Whether a scenario of equal replicas has a part."""


def _has_caps(scenario: Scenario) -> bool:
    engine = scenario.engine
    return engine.max_num_queued_reqs is not None or engine.max_num_queued_tokens is not None


def _modules(scenario: Scenario) -> int:
    """The MTP modules that draft."""
    given = drafts_of(scenario)
    if given is None or given.method != "mtp":
        return 0
    return min(scenario.resolve_model().num_nextn_predict_layers, given.num_speculative_tokens)


def parts_of(scenario: Scenario, beside: Collection[Part] = ()) -> list[Part]:
    """Return the parts of a scenario of equal replicas, and those that its fleet gives it."""
    return [*(part for part, has in _HAS.items() if has(scenario)), *beside]


def parts_of_group(scenario: Scenario, group: Group) -> list[Part]:
    """Return the parts that a fleet gives a group: its half of the requests, its connector, its autoscaling."""
    found = [] if group.autoscaling is None else [goes_with.AUTOSCALING]
    if group.role == "both":
        return found
    pulls = scenario.kv_transfer is not None and scenario.kv_transfer.connector is not None
    if group.role == "prefill":
        return [*found, goes_with.PREFILL]
    return [*found, goes_with.DECODE, goes_with.PULL] if pulls else [*found, goes_with.DECODE_SENT]


def check_parts(scenario: Scenario, parts: Collection[Part]) -> None:
    """Raise InputError, which names both keys, for two parts that cannot be combined."""
    if (row := goes_with.refused(parts)) is not None:
        raise scenario.error(row.first.key, row.message, row.hint)


# LoRA adapters of a scenario's replicas: what they cost, and the memory of their slots.

USUAL_RANK = 16
"""vLLM's default of `max_lora_rank` (vllm/config/lora.py, 0.33)."""


def _loras(scenario: Scenario) -> Loras | None:
    """Return the adapters of a replica; None where it serves none."""
    engine = scenario.engine
    if engine.parameter("max_loras") is None:
        if engine.max_lora_rank is not None:
            raise scenario.error("engine.max_lora_rank", "the engine takes no adapters", "give engine.max_loras")
        return None
    rank = engine.max_lora_rank or USUAL_RANK
    try:
        return Loras(scenario.resolve_model(), scenario.resolve_gpu(), scenario.hardware.tensor_parallel, rank)
    except InputError as error:
        raise scenario.error("engine.max_loras", error.message, error.hint) from None


def build_adapters(scenario: Scenario) -> Loras | None:
    """Build the price of adapters; None without them, and where the cost of steps says all by itself."""
    found = _loras(scenario)
    return found if isinstance(scenario.resolve_cost(), (RooflineCostConfig, ProfileCostConfig)) else None


def adapter_bytes(scenario: Scenario) -> int:
    """Return the bytes of the adapters' slots on each GPU."""
    found = _loras(scenario)
    return 0 if found is None else scenario.engine.parameter("max_loras") * found.slot_bytes


# The encoder of images of a scenario's replicas, and what it costs.


def build_encoder(scenario: Scenario) -> EncoderTime | None:
    """Build the price of images; None where a server takes none, or where the cost of steps says all by itself."""
    if scenario.engine.parameter("max_image_embeddings") is None:
        return None
    if not isinstance(scenario.resolve_cost(), (RooflineCostConfig, ProfileCostConfig)):
        return None
    model = scenario.resolve_model()
    if not model.encoder_parameters:
        what = f"the model {model.name} has no encoder of images"
        hint = f"model: {{base: {model.name}, encoder_parameters: 6.7e8}}, or no max_image_embeddings"
        raise scenario.error("engine.max_image_embeddings", what, hint)
    return EncoderTime(model, scenario.resolve_gpu(), scenario.hardware.tensor_parallel)


# The pipeline of a scenario's replicas: the cost of each stage, and the link between them.
#
# `hardware.pipeline_parallel` is vLLM's --pipeline-parallel-size.

_PIPELINE_KEY = "hardware.pipeline_parallel"
_SENT = 2  # tensors: hidden states and the residual


def check_pipeline(scenario: Scenario) -> None:
    """Raise InputError, with the key, for a policy or a model that has no pipeline; nothing with one stage."""
    engine, hardware = scenario.engine, scenario.hardware
    if hardware.pipeline_parallel == 1:
        if hardware.pipeline_link is not None:
            raise scenario.error(
                "hardware.pipeline_link", "one stage sends nothing", f"give {_PIPELINE_KEY}: 2 or more"
            )
        return
    if not Traits.of(policy_class(engine.policy)).fills_pipelines:
        able = ", ".join(name for name in built_in_policies() if Traits.of(policy_class(name)).fills_pipelines)
        what = f"the policy {engine.policy} does not plan for the stages of a pipeline"
        raise scenario.error(_PIPELINE_KEY, what, f"these do: {able}; or pipeline_parallel: 1")
    try:
        stages_of(scenario.resolve_model(), hardware.pipeline_parallel, hardware.pp_layer_partition)
    except InputError as error:
        raise scenario.error(_PIPELINE_KEY, error.message, error.hint) from None


def build_pipeline(scenario: Scenario, cost: CostModel, adapters: Loras | None) -> PipelineCost | None:
    """Build the pipeline of a scenario that was checked; None with one stage. Each has its layers' part of `adapters`.

    Each token sends two rows of the model's width in 16 bits; with tensor parallelism each GPU sends its part
    (vllm/distributed/parallel_state.py:1083).
    """
    hardware, model = scenario.hardware, scenario.resolve_model()
    if hardware.pipeline_parallel == 1:
        return None
    link = hardware.pipeline_link or PipelineLink()
    gb_s = link.bandwidth_gb_s or LINK_EFFICIENCY * scenario.resolve_gpu().link_gb_s
    sent = _SENT * ACTIVATION_BYTES * model.hidden / hardware.tensor_parallel
    stages: list[CostModel] = []
    for stage in stages_of(model, hardware.pipeline_parallel, hardware.pp_layer_partition):
        own = cost_of_stage(cost, stage)
        stages.append(own if adapters is None else WithAddition(own, replace(adapters, model=stage.model)))
    return PipelineCost(tuple(stages), link.latency_s, sent / (gb_s * 1e9))


def pipeline_cache(scenario: Scenario, settings: MemorySettings) -> KVCache:
    """Return the KV cache that fits on every stage. Raises InputError where one does not fit."""
    hardware = scenario.hardware
    memories = stage_memories(settings, hardware.pipeline_parallel, hardware.pp_layer_partition)
    return pipeline_kv(memories, hardware.num_gpu_blocks)


_EXPERTS_KEY = "hardware.enable_expert_parallel"
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
            raise scenario.error("engine.dp_sync_interval", what, f"give {_EXPERTS_KEY}: true, or leave the key out")
        return None
    from simulator.timing.expert_parallel import ExpertParallelCost, RooflineRanks
    from simulator.timing.formula_cost import Roofline, WindowedRoofline
    from simulator.timing.profile import ProfileCost

    model = scenario.resolve_model()
    if not model.experts:
        raise scenario.error(_EXPERTS_KEY, f"the model {model.name} has no experts to share", "leave the key out")
    if scenario.replicas < 2 and scenario.hardware.tensor_parallel > 1:
        return None  # the GPUs of the one replica hold whole experts, which its cost knows
    if scenario.replicas < 2:
        raise scenario.error(_EXPERTS_KEY, "one replica has no other to share experts with", "give replicas: 2 or more")
    if model.experts < scenario.replicas:
        what = f"{scenario.replicas} replicas are more than the {model.experts} experts that they would share"
        raise scenario.error(_EXPERTS_KEY, what, f"give replicas: {model.experts} or fewer")
    if not isinstance(cost, (ProfileCost, Roofline, WindowedRoofline)):
        what = "the steps of replicas that share experts need a profile or the roofline"
        raise scenario.error(_EXPERTS_KEY, what, "cost: {kind: auto}")
    copies = model.active_experts if server_of(scenario.engine.policy).all_to_all else None
    if not isinstance(cost, ProfileCost):
        return RooflineRanks.of(cost, scenario.replicas, copies)
    try:
        return ExpertParallelCost.of(cost, model.hidden, scenario.resolve_gpu(), scenario.replicas, copies)
    except InputError as error:
        raise scenario.error(_EXPERTS_KEY, error.message, error.hint) from None
