"""The parts that a replica is put together from."""

from dataclasses import dataclass

from simulator.engine.clock import Clock
from simulator.engine.completion import OnEnd
from simulator.engine.decisions import DecisionLog
from simulator.memory.blocks import KVBlocks
from simulator.plan import Policy
from simulator.results.recorder import Recorder
from simulator.timing.executor import Executor


@dataclass(frozen=True, slots=True)
class ReplicaParts:
    """The parts of one replica, whichever of the replicas' classes it is.

    `index` is its number in the fleet, `group` the name of its group. `decisions` is None unless they are logged,
    `max_queued_requests` None without a bound, `on_end` None where no client listens.
    """

    index: int
    clock: Clock
    policy: Policy
    blocks: KVBlocks
    block_size: int
    executor: Executor
    recorder: Recorder
    group: str
    fast_forward: bool
    decisions: DecisionLog | None
    max_queued_requests: int | None
    on_end: OnEnd | None
