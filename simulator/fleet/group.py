"""Replicas of one kind: the hardware, engine, step costs and parts that they share, and how many a group wants."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from math import ceil
from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol

from simulator import goes_with
from simulator.engine.admission import NO_CAPS, QueueCaps
from simulator.goes_with import Part
from simulator.memory.blocks import BlockLedger, Cache, KVBlocks
from simulator.policy_traits import Traits
from simulator.timing.executor import Executor, Predicted

if TYPE_CHECKING:
    from simulator.engine.parts.connected_memory import MakeConnector
    from simulator.plan import Policy
    from simulator.speculative import Speculation
    from simulator.timing.cost import CostModel, GroupCost
    from simulator.timing.pipeline_cost import PipelineCost


# How many replicas a group wants: the rule of the Kubernetes Horizontal Pod Autoscaler, over an engine's own
# metrics.
#
# At every interval each metric proposes ceil(its sum over the ready replicas / target); within `tolerance` of the
# present number it proposes no change; the largest proposal counts. A smaller number is taken only when every
# proposal of the scale-down window was smaller, a larger one when every proposal of the scale-up window was larger
# (Kubernetes, "Horizontal Pod Autoscaling": algorithm details, stabilization window; `behavior.scaleUp/scaleDown`,
# whose rate policies are left out). llm-d and the Gateway API Inference Extension scale vLLM by
# `num_requests_waiting` and `kv_cache_usage_perc` in this way. A share of requests within their SLO is no load that
# spreads over replicas, so it proposes a step: one more below its target, one fewer otherwise.


@dataclass(frozen=True, slots=True)
class Targets:
    """Targets of the metrics. A metric whose target is None is not used.

    The first is requests waiting in the queue of a replica, the second used / usable KV blocks, both as the mean over
    the ready replicas; the third the share of the requests ended in an interval that met their limits.
    """

    num_requests_waiting: float | None = None
    kv_cache_usage: float | None = None
    slo_attainment: float | None = None


@dataclass(frozen=True, slots=True)
class Autoscaling:
    """The rule and its limits. Times in seconds.

    `max_replicas` is also how many servers there are: one that drains keeps its server until it is empty.
    """

    min_replicas: int
    max_replicas: int
    targets: Targets = field(default_factory=Targets)
    interval_s: float = 15.0
    tolerance: float = 0.1
    startup_s: float = 0.0
    scale_up_stabilization_s: float = 0.0
    scale_down_stabilization_s: float = 300.0


class Seen(NamedTuple):
    """The input of an evaluation: `waiting` and `kv` are sums over the ready replicas, `current` counts starting ones.

    `attained` of the `ended` requests of the last interval met their limits.
    """

    current: int
    waiting: int
    kv: float
    ended: int
    attained: int


def proposal(rule: Autoscaling, seen: Seen) -> int:
    """The number of replicas that the metrics of one moment ask for, within the limits."""
    targets, current = rule.targets, seen.current
    proposals = []
    for total, target in ((seen.waiting, targets.num_requests_waiting), (seen.kv, targets.kv_cache_usage)):
        if target is not None:
            ratio = total / (target * current)
            proposals.append(current if abs(ratio - 1.0) <= rule.tolerance else ceil(total / target))
    if targets.slo_attainment is not None:
        missed = seen.attained < targets.slo_attainment * seen.ended
        proposals.append(current if not seen.ended else current + 1 if missed else current - 1)
    return min(max(max(proposals, default=current), rule.min_replicas), rule.max_replicas)


class Stabilized:
    """Proposals of the recent past, and the number of replicas that follows from them."""

    def __init__(self, rule: Autoscaling) -> None:
        self._rule = rule
        self._recent: deque[tuple[float, int]] = deque()

    def wanted(self, now_s: float, current: int, proposed: int) -> int:
        """The number to have from now on, where `proposed` is the newest proposal."""
        rule, recent = self._rule, self._recent
        recent.append((now_s, proposed))
        up_s, down_s = rule.scale_up_stabilization_s, rule.scale_down_stabilization_s
        while recent[0][0] < now_s - max(up_s, down_s):
            recent.popleft()
        most = max(count for at_s, count in recent if at_s >= now_s - down_s)
        least = min(count for at_s, count in recent if at_s >= now_s - up_s)
        return least if least > current else min(most, current)


# Replicas of one kind: the hardware, engine, step costs and parts that they share.

# Replicas of one kind: hardware, engine and step costs that they share.

Role = Literal["both", "prefill", "decode"]


class KVMemory(Protocol):
    """Sizes of one replica's KV memory."""

    @property
    def num_gpu_blocks(self) -> int:
        """vLLM's count: one of them is the null block, which is never used."""

    @property
    def block_size(self) -> int: ...

    @property
    def num_host_blocks(self) -> int: ...


@dataclass(frozen=True, slots=True)
class ReplicaGroup:
    """A group of `replicas` equal replicas. `make_policy` makes a policy for each, or one for all if it is constant.

    Durations come from `cost`, or from the executor that `make_executor` gives each replica. `make_blocks` is called
    with the numbers of usable device blocks and of host blocks. With `group_cost`, the replicas are data-parallel ranks
    that step together, and it says how long. A replica rejects a request that finds `max_queued_requests` waiting,
    and its server one beyond `queue_caps`: each replica is a server, unless the router makes one of all.
    With `autoscaling` the group begins with `initial_replicas`; `replicas` is then the most that it can have.
    `role` says which half of a request its replicas serve; `block_bytes` is the size of a block, over all GPUs.
    With `speculation` each decodes speculatively; with `pipeline`, which is then the cost, each has its stages; with
    `connector`, which makes it, each has a KV connector. `has_kv_groups`: its blocks are `GroupedBlocks`.
    """

    make_policy: Callable[[], Policy]
    kv: KVMemory
    cost: CostModel | None = None
    swap_s_per_block: float = 0.0
    swap_overlap: bool = False
    group_cost: GroupCost | None = None
    make_executor: Callable[[], Executor] | None = None
    make_blocks: Callable[[int, int], KVBlocks] = BlockLedger
    replicas: int = 1
    name: str = "default"
    max_queued_requests: int | None = None
    queue_caps: QueueCaps = NO_CAPS
    autoscaling: Autoscaling | None = None
    initial_replicas: int = 1
    role: Role = "both"
    block_bytes: int = 0
    speculation: Speculation | None = None
    connector: MakeConnector | None = None
    pipeline: PipelineCost | None = None
    has_kv_groups: bool = False

    @property
    def usable_blocks(self) -> int:
        """Usable KV blocks of one replica."""
        return self.kv.num_gpu_blocks - 1

    def policies(self) -> Iterator[Policy]:
        """Yields the policy of each replica."""
        first = self.make_policy()
        constant = _is_constant(first)
        yield first
        while True:
            yield first if constant else self.make_policy()

    def executors(self) -> Callable[[], Executor]:
        """Returns what makes each executor. ValueError where there is neither a cost model nor an executor."""
        if self.make_executor is not None:
            return self.make_executor
        cost = self.cost if self.pipeline is None else self.pipeline
        if cost is None:
            raise ValueError("simulate needs a cost model or an executor")
        executor = Predicted(cost, self.swap_s_per_block, swap_overlap=self.swap_overlap)
        return lambda: executor  # Predicted has no state: one serves all


_UNSET = object()  # a field that is set later, which is a change


def _is_constant(value: object) -> bool:
    """True if nothing can change about a value: a number, a word, a tuple of such, or what has but constant fields."""
    kind = type(value)
    if is_dataclass(kind):
        return (
            not hasattr(value, "__dict__")  # which takes any name, frozen or not
            and all(map(_is_frozen, kind.__mro__[:-1]))
            and all(_is_constant(getattr(value, field.name, _UNSET)) for field in fields(kind))
        )
    if isinstance(value, tuple):
        return all(map(_is_constant, value))
    return value is None or isinstance(value, (bool, int, float, str))


def _is_frozen(kind: type) -> bool:
    """True if a class is a frozen dataclass itself: one that inherits from it can set names of its own."""
    params = vars(kind).get("__dataclass_params__")
    return params is not None and bool(params.frozen)


# The parts of a group's replicas, as `simulator.goes_with` knows them, and the refusal of those without a rule.

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
