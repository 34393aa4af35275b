"""A whole run: a workload through replicas on one clock."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from simpy.events import Event

from simulator.engine.clock import URGENT, Clock, no_garbage_collection
from simulator.errors import InputError
from simulator.fleet.cluster import Cluster, Workers, coupled_by, looks_at_every_arrival, serve_independently
from simulator.fleet.dispatch import LinkSpeed
from simulator.fleet.fleet import Fleet
from simulator.fleet.group import KVMemory, ReplicaGroup
from simulator.fleet.router import Router, RouterFeatures
from simulator.fleet.routers import load_router
from simulator.fleet.run_ahead import RunAhead
from simulator.fleet.windows import LocalReplicas
from simulator.front_end import NO_FRONT_END, FirstTokens, FrontEnd
from simulator.memory.blocks import BlockLedger, KVBlocks
from simulator.metrics.latency import Slo
from simulator.plan import Policy
from simulator.request import Request
from simulator.results.recorder import Recorder, Watch
from simulator.results.records import Floats, Records
from simulator.timing.cost import CostModel, GroupCost
from simulator.timing.executor import Executor
from simulator.traffic.clients import Clients, Servers
from simulator.workload import Workload

if TYPE_CHECKING:
    from simulator.fleet.gateway import FlowControl

__all__ = ["KVMemory", "ReplicaGroup", "Run", "simulate", "simulate_fleet"]


@dataclass(frozen=True, slots=True)
class Run:
    """The result of `simulate`: records by the engine's clock.

    `delays_s` are by how much a client saw each request's tokens later; None where it saw them at once.
    """

    records: Records
    decisions: list[dict[str, Any]] | None
    delays_s: Floats | None = None

    def at_clients(self) -> Records:
        """The records with the times of first and last tokens as clients see them."""
        if self.delays_s is None:
            return self.records
        requests = self.records.requests
        seen = {name: getattr(requests, name) + self.delays_s for name in ("first_token_s", "last_token_s")}
        return replace(self.records, requests=replace(requests, **seen), front_end_s=self.delays_s)


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
    front_end: FrontEnd = NO_FRONT_END,
    max_queued_requests: int | None = None,
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
        front_end=front_end,
    )


@no_garbage_collection()  # it would walk every replica and waiting request again and again, and there are no cycles
def simulate_fleet(
    workload: Workload,
    groups: Sequence[ReplicaGroup],
    *,
    router: str | Router = "round_robin",
    signal_interval_s: float = 0.0,
    fast_forward: bool = True,
    log_decisions: bool = False,
    progress: Callable[[int], None] | None = None,
    front_end: FrontEnd = NO_FRONT_END,
    slo: Slo | None = None,
    link: LinkSpeed | None = None,
    workers: Workers | None = None,
    watch: Watch | None = None,
    flow_control: FlowControl | None = None,
) -> Run:
    """Serve every request of the workload by the replicas of these groups, and return what happened.

    `router` is a new one, or the name of one: a built-in one or `path.py:Class`. With `signal_interval_s` above 0 it
    sees loads as of its last look (`simulator.fleet.signals`). `progress` is called now and then with the number of
    requests that have ended. Autoscalers may look at how many requests meet `slo`. Between groups
    that prefill and groups that decode KV moves over `link`. The result does not depend on `fast_forward`, nor on
    `workers`, to the last bit. With `workers` processes of theirs advance the replicas; InputError where something
    couples the replicas too closely (`coupled_by`, `looks_at_every_arrival`).

    Clients see tokens later than the engine by `front_end`, and react then. Where the workload answers back, the
    records hold what arrived, in order of arrival. With `flow_control` requests wait at the gateway while the replicas
    are saturated. `watch` is called with each request as it is recorded; what it
    raises ends the run.
    """
    chosen = load_router(router) if isinstance(router, str) else router
    recorder = Recorder(sum(group.replicas for group in groups), progress)
    if watch is not None:
        recorder.watch(watch)
    first_tokens = FirstTokens(front_end)
    coupled = coupled_by(workload, groups, chosen)
    if flow_control is not None:
        coupled = "the gateway looks at all replicas"
    looks, features = looks_at_every_arrival(chosen, signal_interval_s), RouterFeatures.of(chosen)
    if workers is not None:
        _refuse_workers(coupled, looks, fast_forward)
    if coupled is None and fast_forward and (features.takes_fewest or not looks):
        fleet = Fleet(Clock, groups, recorder, log_decisions=log_decisions, first_tokens=first_tokens)
        if looks:
            RunAhead(workload, fleet).serve()
        else:
            host = LocalReplicas(fleet) if workers is None else workers.host_of(fleet)
            serve_independently(workload.requests(), fleet, chosen, signal_interval_s, host)
        fleet.abandon()
        records = recorder.records(workload, fleet.groups)
        return Run(
            records, fleet.decisions(), first_tokens.of_all(len(records.requests.row), records.requests.input_tokens)
        )
    clock = Clock()
    clients = Clients(clock, workload, first_tokens) if workload.answers_back else None
    cluster = Cluster(
        clock,
        groups,
        chosen,
        recorder,
        signal_interval_s=signal_interval_s,
        fast_forward=fast_forward,
        log_decisions=log_decisions,
        on_end=None if clients is None else clients.on_end,
        first_tokens=first_tokens,
        slo=slo,
        link=link,
        flow_control=flow_control,
    )
    intakes, dispatch = cluster.fleet.intakes, cluster.dispatch
    if clients is not None:
        clients.servers = dispatch
    elif len(intakes) == 1 and fast_forward and groups[0].group_cost is None and flow_control is None:
        intakes[0].read_ahead(workload.requests())
    else:
        clock.process(_arrive(clock, workload.requests(), dispatch))
    clock.run()
    records = cluster.records(workload if clients is None else clients.workload())
    if clients is not None:
        records = clients.seen(records)
    prompts = None if workload.follows_answers else records.requests.input_tokens  # else: tokenised on the way in
    return Run(records, cluster.fleet.decisions(), first_tokens.of_all(len(records.requests.row), prompts))


def _arrive(clock: Clock, requests: Iterable[Request], servers: Servers) -> Generator[Event, object, None]:
    """Submit each request as it arrives, before any decision of that moment."""
    for request in requests:
        if request.arrival_s > clock.now:
            yield clock.at(request.arrival_s, URGENT)
        servers.submit(request)


def _refuse_workers(coupled: str | None, looks: bool, fast_forward: bool) -> None:
    """Raise InputError for a fleet that has to stay in one process."""
    hint = "one worker"
    if looks:
        coupled = coupled or "the router looks at the loads at every arrival"
        hint = "router: {signal_interval_s: ...} lets it look now and then; else one worker"
    if not fast_forward:
        coupled = coupled or "without fast-forward every step is an event"
    if coupled is not None:
        raise InputError(f"this fleet cannot be shared among worker processes: {coupled}", hint=hint)
