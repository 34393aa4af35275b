"""A whole run: a workload through replicas on one clock."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from simulator.engine.clock import Clock
from simulator.engine.data_parallel import GroupCost
from simulator.engine.no_gc import no_garbage_collection
from simulator.engine.timetable import Door, Inlet, OnEnd
from simulator.fleet.ahead import DealAhead
from simulator.fleet.disaggregation import Disaggregation
from simulator.fleet.dispatch import Dispatch
from simulator.fleet.dispatcher import Dispatcher
from simulator.fleet.fleet import Fleet
from simulator.fleet.group import KVMemory, ReplicaGroup
from simulator.fleet.link import LinkSpeed
from simulator.fleet.roles import Roles, is_disaggregated
from simulator.fleet.router import Router, RouterFeatures
from simulator.fleet.routers import load_router
from simulator.fleet.scaling import Scaling
from simulator.fleet.signals import way_to
from simulator.memory.blocks import BlockLedger, KVBlocks
from simulator.metrics.slo import Slo
from simulator.plan import Policy
from simulator.results.recorder import Recorder, Watch
from simulator.results.records import Records
from simulator.timing.cost import CostModel
from simulator.timing.executor import Executor
from simulator.traffic.clients import Clients
from simulator.workload import Workload

__all__ = ["KVMemory", "ReplicaGroup", "Run", "simulate", "simulate_fleet"]


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
    router: str | Router = "round_robin",
    signal_interval_s: float = 0.0,
    fast_forward: bool = True,
    log_decisions: bool = False,
    progress: Callable[[int], None] | None = None,
    front_end_s: float = 0.0,
    max_queued_requests: int | None = None,
    make_listener: Callable[[Inlet], OnEnd] | None = None,
) -> Run:
    """Serve every request of the workload by equal replicas, and return what happened.

    `ReplicaGroup` says what the replicas are made of, `simulate_fleet` the rest.
    """
    group = ReplicaGroup(
        make_policy,
        kv,
        cost,
        swap_s_per_block,
        swap_overlap,
        group_cost,
        make_executor,
        make_blocks,
        replicas,
        max_queued_requests=max_queued_requests,
    )
    return simulate_fleet(
        workload,
        [group],
        router=router,
        signal_interval_s=signal_interval_s,
        fast_forward=fast_forward,
        log_decisions=log_decisions,
        progress=progress,
        front_end_s=front_end_s,
        make_listener=make_listener,
    )


def simulate_fleet(
    workload: Workload,
    groups: Sequence[ReplicaGroup],
    *,
    router: str | Router = "round_robin",
    signal_interval_s: float = 0.0,
    fast_forward: bool = True,
    log_decisions: bool = False,
    progress: Callable[[int], None] | None = None,
    front_end_s: float = 0.0,
    make_listener: Callable[[Inlet], OnEnd] | None = None,
    slo: Slo | None = None,
    link: LinkSpeed | None = None,
    watch: Watch | None = None,
) -> Run:
    """Serve every request of the workload by the replicas of these groups, and return what happened.

    `router` is a new one, or the name of one: a built-in one or `path.py:Class`. With `signal_interval_s` above 0 it
    sees loads as of its last look (`simulator.fleet.signals`). `progress` is called now and then with the number of
    requests that have ended. Autoscalers may look at how many requests meet `slo`. Between groups
    that prefill and groups that decode KV moves over `link`. The result does not depend on `fast_forward`, to the last
    bit.

    Where the workload answers back, clients see tokens `front_end_s` after the engine, and the records hold what
    arrived, in order of arrival. `make_listener` is given where further requests and aborts can be put, and returns
    what is told of each end. `watch` is told of each request as it is recorded; what it raises ends the run.
    """
    chosen = load_router(router) if isinstance(router, str) else router
    features = RouterFeatures.of(chosen)
    clock = Clock()
    recorder = Recorder(sum(group.replicas for group in groups), progress)
    door = Door()
    clients = Clients(clock, workload, front_end_s=front_end_s) if workload.answers_back else None
    on_end = None if make_listener is None else make_listener(door)
    if clients is not None:
        on_end = clients.on_end
    roles = Roles(on_end) if is_disaggregated(groups) else None
    by_steps = features.reads_caches and len(recorder.replicas) > 1
    fleet = Fleet(
        clock,
        groups,
        recorder,
        fast_forward=fast_forward and not by_steps,
        log_decisions=log_decisions,
        on_end=on_end if roles is None else roles.told,
    )
    dispatch: Dispatch | Disaggregation
    if roles is None:
        dispatch = way_to(clock, fleet.replicas, fleet.intakes, chosen, signal_interval_s)
    else:
        dispatch = roles.connect(clock, fleet, groups, chosen, signal_interval_s, link or LinkSpeed(), recorder)
    scaling = Scaling(clock, groups, fleet, dispatch.replicas, recorder, slo)
    if watch is not None:
        recorder.watch(watch)
    fixed = roles is None and all(group.group_cost is None and group.autoscaling is None for group in groups)
    apart = fast_forward and on_end is None and fixed
    if clients is not None:
        clients.servers = dispatch
    elif len(fleet.replicas) == 1 and fast_forward and groups[0].group_cost is None:
        fleet.intakes[0].read_ahead(workload.requests())
        door.open(fleet.intakes[0])
    elif isinstance(dispatch, Dispatch) and apart and not features.reads_loads:
        clock.process(DealAhead(clock, dispatch.choose, fleet.intakes).serve(workload.requests()))
    else:
        dispatcher = Dispatcher(clock, workload.requests(), dispatch, is_open=on_end is not None)
        door.open(dispatcher)
        clock.process(dispatcher.serve())
    with no_garbage_collection():  # it would walk every waiting request again and again, and there are no cycles
        clock.run()
    fleet.abandon()
    scaling.record(recorder.end_s())
    records = recorder.records(workload if clients is None else clients.workload(), fleet.groups)
    if clients is not None:
        records = clients.seen(records)
    return Run(records, fleet.decisions())
