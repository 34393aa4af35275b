"""The parts of a scenario's servers, and the refusal of two that cannot be combined, at the key in the scenario.

`simulator.goes_with` has the table. A model's KV groups are no part here: where they cannot be combined with another
part, all layers keep all tokens (`scenarios.assembly.kv_memory`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING

from scenarios.assembly.speculation import drafts_of
from scenarios.assembly.unused_keys import takes_ahead
from scenarios.schema.scenario import Scenario
from simulator import goes_with
from simulator.goes_with import Part
from simulator.policies import REAL_POLICIES

if TYPE_CHECKING:
    from scenarios.assembly.groups import Group

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
