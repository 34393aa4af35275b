"""A whole run: a workload through replicas on one clock."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from simulator.engine.clock import Clock
from simulator.engine.data_parallel import GroupCost
from simulator.engine.no_gc import no_garbage_collection
from simulator.fleet.ahead import DealAhead
from simulator.fleet.dispatch import Dispatch
from simulator.fleet.fleet import Fleet
from simulator.fleet.group import KVMemory, ReplicaGroup
from simulator.fleet.replicas import Replicas
from simulator.fleet.router import Router, RouterFeatures
from simulator.fleet.routers import load_router
from simulator.fleet.signals import Signals
from simulator.memory.blocks import BlockLedger, KVBlocks
from simulator.plan import Policy
from simulator.results.recorder import Recorder
from simulator.results.records import Records
from simulator.timing.cost import CostModel
from simulator.timing.executor import Executor
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
) -> Run:
    """Serve every request of the workload by equal replicas, and return what happened.

    `ReplicaGroup` says what the replicas are made of, `simulate_fleet` the rest.
    """
    group = ReplicaGroup(
        make_policy, kv, cost, swap_s_per_block, swap_overlap, group_cost, make_executor, make_blocks, replicas
    )
    return simulate_fleet(
        workload,
        [group],
        router=router,
        signal_interval_s=signal_interval_s,
        fast_forward=fast_forward,
        log_decisions=log_decisions,
        progress=progress,
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
) -> Run:
    """Serve every request of the workload by the replicas of these groups, and return what happened.

    `router` is a new one, or the name of one: a built-in one or `path.py:Class`. With `signal_interval_s` above 0 it
    sees loads as of its last look (`simulator.fleet.signals`). `progress` is called now and then with the number of
    requests that have ended. The result does not depend on `fast_forward`, to the last bit.
    """
    chosen = load_router(router) if isinstance(router, str) else router
    features = RouterFeatures.of(chosen)
    clock = Clock()
    recorder = Recorder(sum(group.replicas for group in groups), progress)
    by_steps = features.reads_caches and len(recorder.replicas) > 1
    fleet = Fleet(clock, groups, recorder, fast_forward=fast_forward and not by_steps, log_decisions=log_decisions)
    alone = fast_forward and all(group.group_cost is None for group in groups)
    if len(fleet.replicas) == 1 and alone:
        fleet.intakes[0].read_ahead(workload.requests())
    elif alone and not features.reads_loads:
        dispatch = Dispatch(clock, chosen, Replicas(fleet.loads), fleet.intakes)
        clock.process(DealAhead(clock, dispatch.choose, fleet.intakes).serve(workload.requests()))
    else:
        _dispatch(clock, fleet, workload, chosen, features, signal_interval_s)
    with no_garbage_collection():  # it would walk every waiting request again and again, and there are no cycles
        clock.run()
    fleet.abandon()
    return Run(recorder.records(workload, fleet.groups), fleet.decisions())


def _dispatch(
    clock: Clock, fleet: Fleet, workload: Workload, router: Router, features: RouterFeatures, signal_interval_s: float
) -> None:
    """Let the router choose at the moment of each arrival, by live loads or by those of its last look."""
    if signal_interval_s > 0 and features.reads_loads:
        signals = Signals(clock, fleet.loads, signal_interval_s)
        dispatch = Dispatch(clock, router, signals.replicas, fleet.intakes, signals.sent)
        clock.process(dispatch.serve(workload.requests()))
        clock.process(signals.looks())
        return
    replicas = Replicas(fleet.loads)
    if features.reads_loads:
        for replica in fleet.replicas:
            replica.changed = replicas.changed
    clock.process(Dispatch(clock, router, replicas, fleet.intakes).serve(workload.requests()))
