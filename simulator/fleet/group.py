"""Replicas of one kind: hardware, engine and step costs that they share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, is_dataclass
from typing import TYPE_CHECKING, Literal, Protocol

from simulator.engine.admission import NO_CAPS, QueueCaps
from simulator.memory.blocks import BlockLedger, KVBlocks
from simulator.timing.executor import Executor, Predicted

if TYPE_CHECKING:
    from simulator.engine.parts.connected_memory import MakeConnector
    from simulator.fleet.autoscaling import Autoscaling
    from simulator.plan import Policy
    from simulator.speculative.speculation import Speculation
    from simulator.timing.cost import CostModel, GroupCost
    from simulator.timing.pipeline_cost import PipelineCost

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
