"""The KV cache of a scenario whose model's layers keep different things of a request."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace
from typing import TYPE_CHECKING

from scenarios.assembly.engine_policy import policy_label
from scenarios.assembly.speculation import drafts_of
from scenarios.schema.scenario import Scenario
from simulator.goes_with import IMAGES, KV_GROUPS, STATES, Part, refused
from simulator.hardware.kv import GIB, KVCache, MemorySettings
from simulator.hardware.kv_groups import LayerCache
from simulator.hardware.kv_plan import KVPlan
from simulator.hardware.layer_caches import layer_caches
from simulator.hardware.layer_types import CHUNK
from simulator.memory.grouped import GroupedBlocks, engine_block_size
from simulator.policies import policy_class
from simulator.policy_traits import Traits
from simulator.timing.drafter import draft_head

if TYPE_CHECKING:
    from simulator.memory.blocks import KVBlocks

_KEY = "engine.disable_hybrid_kv_cache_manager"


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
            raise scenario.error(_KEY, f"there are no KV groups: {reason}", "leave the key out")
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
