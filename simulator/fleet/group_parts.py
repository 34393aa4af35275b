"""The parts of a group's replicas, as `simulator.goes_with` knows them, and the refusal of those without a rule."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from simulator import goes_with
from simulator.goes_with import Part
from simulator.memory.blocks import Cache
from simulator.policy_traits import Traits

if TYPE_CHECKING:
    from simulator.fleet.group import ReplicaGroup
    from simulator.plan import Policy

_OF_THE_GROUP: Mapping[Part, Callable[[ReplicaGroup], bool]] = {
    goes_with.DRAFTS: lambda group: group.speculation is not None,
    goes_with.PIPELINE: lambda group: group.pipeline is not None,
    goes_with.KV_GROUPS: lambda group: group.has_kv_groups,
    goes_with.CONNECTOR: lambda group: group.connector is not None,
    goes_with.EXECUTOR: lambda group: group.make_executor is not None,
    goes_with.RANKS: lambda group: group.group_cost is not None,
    goes_with.AUTOSCALING: lambda group: group.autoscaling is not None,
    goes_with.PREFILL: lambda group: group.role == "prefill",
    goes_with.DECODE: lambda group: group.role == "decode",
    goes_with.DECODE_SENT: lambda group: group.role == "decode" and group.connector is None,
}
_OF_THE_POLICY: Mapping[Part, Callable[[Traits], bool]] = {
    goes_with.ADAPTERS: lambda traits: traits.max_loras is not None,
    goes_with.IMAGES: lambda traits: traits.encodes_images,
    goes_with.BATCHES: lambda traits: traits.keeps_finished or not traits.streams,
}


def parts_of(group: ReplicaGroup, policy: Policy) -> list[Part]:
    """The parts of a replica that has this policy, the general ones first."""
    traits = Traits.of(policy)
    parts = [part for part, has in _OF_THE_GROUP.items() if has(group)]
    parts += [part for part, has in _OF_THE_POLICY.items() if has(traits)]
    if group.speculation is not None and traits.takes_ahead:
        parts.append(goes_with.DRAFTS_AHEAD)
    if goes_with.DECODE_SENT in parts and isinstance(group.make_blocks(1, 0), Cache):
        parts.append(goes_with.PREFIX_CACHE)
    return parts


def check_parts(group: ReplicaGroup, policy: Policy) -> None:
    """Raise InputError, which names the group and both keys, for two parts that cannot be combined."""
    goes_with.check(parts_of(group, policy), f"group {group.name}")
