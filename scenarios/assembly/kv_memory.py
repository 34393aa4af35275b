"""The KV memory of a scenario's replicas: caches of layers that keep different things, and the host's tier."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from scenarios.assembly.engines import policy_label, verifies_drafts
from scenarios.assembly.speculation import drafts_of
from scenarios.schema.scenario import Scenario
from simulator.goes_with import IMAGES, KV_GROUPS, STATES, Part, refused
from simulator.hardware.kv import GIB, KVCache, MemorySettings
from simulator.hardware.kv_groups import LayerCache, layer_caches
from simulator.hardware.kv_plan import KVPlan
from simulator.hardware.model import CHUNK
from simulator.memory.grouped import GroupedBlocks, engine_block_size
from simulator.parameters import split_class
from simulator.policies import built_in_policies, policy_class
from simulator.policies.chunked_prefill.versions import NEWEST
from simulator.policy_traits import Traits
from simulator.timing.added import draft_head

if TYPE_CHECKING:
    from scenarios.schema.host import KVOffload
    from simulator.engine.parts.connected_memory import Connected
    from simulator.engine.parts.offload import Offloading
    from simulator.memory.blocks import KVBlocks
    from simulator.memory.offload import FurtherTierConfig, OffloadConfig


# The KV cache of a scenario whose model's layers keep different things of a request.

_GROUPS_KEY = "engine.disable_hybrid_kv_cache_manager"


def plan_of(scenario: Scenario, settings: MemorySettings, parts: Collection[Part]) -> KVPlan | None:
    """Plan the KV groups of a replica; None where its cache keeps all tokens of all layers alike.

    `parts` are the replica's others. InputError for groups that are asked for and cannot be, and where not one request
    of the longest context fits.
    """
    engine = scenario.engine
    off = engine.disable_hybrid_kv_cache_manager
    if off or not settings.model.has_kv_groups:
        _check_unused(scenario)
        return None
    if (reason := _obstacle(scenario, settings, parts)) is not None:
        if off is False:
            raise scenario.error(_GROUPS_KEY, f"there are no KV groups: {reason}", "leave the key out")
        _check_unused(scenario)
        return None
    return settings.plan(
        enable_prefix_caching=engine.enable_prefix_caching,
        batches_in_flight=2 if engine.parameter("async_scheduling") else 1,
        num_gpu_blocks=scenario.hardware.num_gpu_blocks,
        prefix_match_unit=engine.prefix_match_unit,
        draft_layers=_draft_layers(scenario),
    )


def _draft_layers(scenario: Scenario) -> list[LayerCache | None]:
    """What the drafter's layers keep: a head's one layer keeps all tokens, as the model's full layers do."""
    given, model = drafts_of(scenario), scenario.resolve_model()
    if given is None or given.method == "ngram":
        return []
    own = given.resolve_draft_model() or replace(draft_head(model, given.method), layer_types="")
    return layer_caches(own, scenario.hardware.tensor_parallel)


def _obstacle(scenario: Scenario, settings: MemorySettings, parts: Collection[Part]) -> str | None:
    """Why a replica has no KV groups; None if it has."""
    engine = scenario.engine
    if not Traits.of(policy_class(engine.policy)).asks_groups:
        return f"the policy {policy_label(engine.policy)} does not plan with them"
    if engine.disable_hybrid_kv_cache_manager is None and CHUNK in scenario.resolve_model().layer_types:
        return "vLLM has none for chunked attention unless it is told to"
    groups = STATES if settings.model.has_states else KV_GROUPS
    row = refused([*(part for part in parts if part != IMAGES), groups])  # images are refused, and do not give way
    return None if row is None else f"{row.message} ({row.hint})"


def _check_unused(scenario: Scenario) -> None:
    """Raise InputError for a key that only KV groups have a use for."""
    for key in ("prefix_match_unit", "prefix_cache_retention_interval"):
        if getattr(scenario.engine, key) is not None:
            what = f"the cache of {scenario.resolve_model().name} has no groups here, for which alone the key is"
            raise scenario.error(f"engine.{key}", what, "leave it out")


def cache_of(plan: KVPlan, swap_space_gib: float) -> KVCache:
    """Return the counts of a planned cache, in blocks of the layers that keep all tokens."""
    each = plan.bytes_per_block[0]
    return KVCache(plan.num_blocks, engine_block_size(plan), int(swap_space_gib * GIB) // each, each)


def blocks_of(scenario: Scenario, plan: KVPlan) -> Callable[[int, int], KVBlocks]:
    """Return the maker of blocks of a planned cache."""
    interval = scenario.engine.prefix_cache_retention_interval
    size = plan.scheduler_block_size
    if isinstance(interval, int) and interval % size:
        what = f"{interval} is no multiple of {size} tokens, the smallest block that all groups have"
        raise scenario.error(
            "engine.prefix_cache_retention_interval", what, f"allowed: 0, {size}, {2 * size}, ..., all"
        )
    retention = None if interval == "all" else interval or 0
    offload = scenario.hardware.kv_offload
    if offload is None:
        return lambda usable, host: GroupedBlocks(plan, usable, retention)
    chunks = [g.cache.block_size * offload.blocks_per_chunk for g in plan.groups if g.cache.kind != "full"]
    if retention is not None and any(retention % chunk for chunk in chunks):
        what = f"{retention} is no multiple of {max(chunks)} tokens, a chunk of hardware.kv_offload"
        raise scenario.error("engine.prefix_cache_retention_interval", what, f"allowed: 0, {max(chunks)}, ..., all")
    from simulator.engine.parts.connector import ConnectedGroups

    return lambda usable, host: ConnectedGroups(plan, usable, retention)


# The host's tier of KV, built from `hardware.kv_offload`.

_OFFLOAD_KEY = "hardware.kv_offload"
_PAGE = 4096  # bytes: a chunk of each GPU begins on a page of the host


@dataclass(frozen=True, slots=True)
class MakeOffloading:
    """Makes a replica's connector of its blocks, and of whether its steps overlap."""

    config: OffloadConfig

    def __call__(self, blocks: Connected, overlaps: bool) -> Offloading:
        from simulator.engine.parts.offload import Offloading
        from simulator.engine.parts.tiers import Tiering

        kind = Tiering if self.config.tiers else Offloading
        return kind(self.config, blocks, overlaps=overlaps)


def build_offloading(scenario: Scenario, kv: KVCache) -> MakeOffloading | None:
    """Build the tier; None without one. Raises InputError for a server that cannot have it."""
    given = scenario.hardware.kv_offload
    if given is None:
        return None
    _check(scenario)
    from simulator.memory.offload import OffloadConfig

    hardware = scenario.hardware
    of_each_gpu = -(-kv.bytes_per_block * given.blocks_per_chunk // _PAGE) * _PAGE
    chunks = int(given.host_gib * GIB) // (of_each_gpu * hardware.tensor_parallel)
    if not chunks:
        least = of_each_gpu * hardware.tensor_parallel / GIB
        what = f"{given.host_gib} GiB do not hold one chunk of {given.blocks_per_chunk} blocks"
        raise scenario.error(f"{_OFFLOAD_KEY}.host_gib", what, f"at least {least:.6f}, or fewer blocks_per_chunk")
    link_gb_s = scenario.resolve_gpu().host_link_gb_s if given.link_gb_s is None else given.link_gb_s
    return MakeOffloading(
        OffloadConfig(
            chunks,
            kv.bytes_per_block * hardware.tensor_parallel,
            link_gb_s * 1e9 * hardware.tensor_parallel,  # each GPU copies its part over a link of its own
            given.latency_s,
            given.policy,
            given.blocks_per_chunk,
            given.offload_prompt_only,
            given.store_threshold,
            given.sync_load_budget_bytes // kv.bytes_per_block,
            _further(scenario, given, of_each_gpu * hardware.tensor_parallel),
        )
    )


def _further(scenario: Scenario, given: KVOffload, chunk_bytes: int) -> tuple[FurtherTierConfig, ...]:
    """The tiers below the host, in chunks."""
    from simulator.memory.offload import FurtherTierConfig

    found = []
    for place, tier in enumerate(given.tiers or ()):
        chunks = None if tier.size_gib is None else int(tier.size_gib * GIB) // chunk_bytes
        if chunks == 0:
            what = f"{tier.size_gib} GiB do not hold one chunk of {given.blocks_per_chunk} blocks"
            raise scenario.error(f"{_OFFLOAD_KEY}.tiers.{place}.size_gib", what, f"at least {chunk_bytes / GIB:.6f}")
        found.append(FurtherTierConfig(chunks, tier.bandwidth, tier.latency_s, tier.policy))
    return tuple(found)


def connected_blocks(block_size: int) -> Callable[[int, int], KVBlocks]:
    """The maker of blocks that a connector reads and writes."""
    from simulator.engine.parts.connected_memory import ConnectedBlocks

    return partial(ConnectedBlocks, block_size=block_size)


def _check(scenario: Scenario) -> None:
    engine = scenario.engine
    if not verifies_drafts(engine.policy):
        able = ", ".join(name for name in built_in_policies() if verifies_drafts(name))
        what = f"the policy {split_class(engine.policy)[1]} does not plan with KV on the host"
        raise scenario.error(_OFFLOAD_KEY, what, f"these do: {able}; or leave the key out")
    needs = {
        "engine.version": (engine.parameter("version", NEWEST) != NEWEST, f"is known as vLLM {NEWEST} has it"),
        "engine.enable_prefix_caching": (not engine.enable_prefix_caching, "needs the prefix cache of the device"),
    }
    for key, (is_so, what) in needs.items():
        if is_so:
            raise scenario.error(
                _OFFLOAD_KEY, f"offloading {what}: see `{key}`", f"change `{key}`, or leave out {_OFFLOAD_KEY}"
            )
