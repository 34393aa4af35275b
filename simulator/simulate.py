"""A whole run: a workload through N replicas on one clock."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from simulator.engine.async_scheduling import AsyncLoop
from simulator.engine.clock import Clock
from simulator.engine.data_parallel import DataParallelGroup, GroupCost
from simulator.engine.decisions import DecisionLog
from simulator.engine.intake import Intake
from simulator.engine.loop import Loop
from simulator.engine.no_gc import no_garbage_collection
from simulator.engine.replica import Replica
from simulator.engine.timetable import Door, Inlet, OnEnd
from simulator.fleet.dispatch import Dispatch
from simulator.fleet.dispatcher import Dispatcher
from simulator.fleet.routers import load_router
from simulator.memory.blocks import BlockLedger, KVBlocks
from simulator.plan import Policy
from simulator.results.recorder import Recorder
from simulator.results.records import Records
from simulator.timing.cost import CostModel
from simulator.timing.executor import Executor, Predicted
from simulator.traffic.clients import Clients
from simulator.workload import Workload


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
class Run:
    """What `simulate` returns."""

    records: Records
    decisions: list[dict[str, Any]] | None


def simulate(
    workload: Workload,
    *,
    make_policy: Callable[[], Policy],
    kv: KVMemory,
    cost: CostModel | None = None,
    swap_s_per_block: float = 0.0,
    swap_overlap: bool = False,
    group_cost: GroupCost | None = None,
    make_executor: Callable[[], Executor] | None = None,
    make_blocks: Callable[[int, int], KVBlocks] = BlockLedger,
    replicas: int = 1,
    router: str = "round_robin",
    fast_forward: bool = True,
    log_decisions: bool = False,
    progress: Callable[[int], None] | None = None,
    front_end_s: float = 0.0,
    max_queued_requests: int | None = None,
    make_listener: Callable[[Inlet], OnEnd] | None = None,
) -> Run:
    """Serve every request of the workload, and return what happened.

    Durations come from `cost`, or from the executor that `make_executor` gives each replica. `make_blocks` is called
    with the numbers of usable device blocks and of host blocks. With `group_cost`, the replicas are data-parallel ranks
    that step together, and it says how long. `router` is a built-in one or `path.py:Class`. `progress` is called now
    and then with the number of requests that have ended. The result does not depend on `fast_forward`, to the last bit.

    Where the workload answers back, clients see tokens `front_end_s` after the engine, and the records hold what
    arrived, in order of arrival. A replica rejects a request that finds `max_queued_requests` waiting. `make_listener`
    is given where further requests and aborts can be put, and returns what is told of each end.
    """
    if make_executor is None:
        if cost is None:
            raise ValueError("simulate needs a cost model or an executor")
        executor = Predicted(cost, swap_s_per_block, swap_overlap=swap_overlap)
        make_executor = lambda: executor  # noqa: E731 - Predicted has no state: one serves all
    chosen = load_router(router)
    clock = Clock()
    recorder = Recorder(replicas, progress)
    logs = [DecisionLog(index) for index in range(replicas)] if log_decisions else None
    num_blocks = kv.num_gpu_blocks - 1
    door = Door()
    clients = Clients(clock, workload, front_end_s=front_end_s) if workload.answers_back else None
    on_end = None if make_listener is None else make_listener(door)
    if clients is not None:
        on_end = clients.on_end
    servers = [
        Replica(
            index,
            clock,
            make_policy(),
            make_blocks(num_blocks, kv.num_host_blocks),
            kv.block_size,
            make_executor(),
            recorder,
            fast_forward=fast_forward and group_cost is None,
            decisions=None if logs is None else logs[index],
            max_queued_requests=max_queued_requests,
            on_end=on_end,
        )
        for index in range(replicas)
    ]
    intakes = _drive(clock, servers, group_cost, fast_forward=fast_forward)
    dispatch = Dispatch(chosen, [server.load for server in servers], intakes)
    if clients is not None:
        clients.servers = dispatch
    elif replicas == 1 and fast_forward and group_cost is None:
        intakes[0].read_ahead(workload.requests())
        door.open(intakes[0])
    else:
        dispatcher = Dispatcher(clock, workload.requests(), dispatch, intakes, is_open=on_end is not None)
        door.open(dispatcher)
        clock.process(dispatcher.serve())
    with no_garbage_collection():  # it would walk every waiting request again and again, and there are no cycles
        clock.run()
    for server in servers:
        server.abandon()
    state = servers[0].state
    records = recorder.records(
        workload if clients is None else clients.workload(),
        num_blocks=num_blocks,
        block_size=kv.block_size,
        max_num_seqs=state.policy.max_num_seqs,
        streams=state.traits.streams,
    )
    if clients is not None:
        records = clients.seen(records)
    return Run(records, None if logs is None else _in_order(logs))


def _drive(clock: Clock, servers: list[Replica], group_cost: GroupCost | None, *, fast_forward: bool) -> list[Intake]:
    """Start the processes that drive the replicas; returns where each takes its requests."""
    if group_cost is not None:
        group = DataParallelGroup(clock, servers, group_cost)
        clock.process(group.serve())
        return group.intakes
    intakes = []
    for server in servers:
        loop: Loop | AsyncLoop
        if server.late is None:
            loop = Loop(clock, server, fast_forward=fast_forward)
        else:
            loop = AsyncLoop(clock, server, server.late, fast_forward=fast_forward)
        clock.process(loop.serve())
        intakes.append(loop.intake)
    return intakes


def _in_order(logs: list[DecisionLog]) -> list[dict[str, Any]]:
    """The replicas' decisions by start of the step."""
    steps = [step for log in logs for step in log.steps]
    if len(logs) > 1:
        steps.sort(key=lambda step: (step["t_start_s"], step["replica"], step["step"]))
    return steps
