"""Runs whose clients hear of each end as it happens, and then submit further requests or give up on others."""

from collections.abc import Callable, Generator, Sequence
from heapq import heapify, heappop, heappush
from math import inf

from simpy.events import Event

from simulator.engine.clock import FOLLOW_UP, URGENT, Clock, EventPriority, no_garbage_collection
from simulator.engine.completion import OnEnd
from simulator.fleet.cluster import Cluster
from simulator.fleet.dispatch import LinkSpeed
from simulator.fleet.group import ReplicaGroup
from simulator.fleet.routers import load_router
from simulator.request import Request
from simulator.results.recorder import Recorder
from simulator.simulate import Run
from simulator.traffic.clients import Servers
from simulator.workload import Workload

_ARRIVAL, _ABORT = 0, 1


class Inlet:
    """Takes requests and aborts for now or later, and gives them to the servers at their times.

    At one time arrivals come before aborts, each in order of rows, and all before any decision.
    """

    servers: Servers

    def __init__(self, clock: Clock, workload: Workload) -> None:
        self._clock = clock
        self._due = [(r.arrival_s, _ARRIVAL, r.row, r) for r in workload.requests()]  # a heap; aborts have no request
        heapify(self._due)
        self._given_to: dict[int, int] = {}  # by row
        self._pause: Event | None = None
        self._until_s = inf

    def submit_at(self, request: Request) -> None:
        """Let `request` arrive at its `arrival_s`."""
        self._add(request.arrival_s, _ARRIVAL, request.row, request)

    def abort_at(self, row: int, at_s: float) -> None:
        """Let the client of a request give up at `at_s`; without effect if the request has ended by then."""
        self._add(at_s, _ABORT, row, None)

    def _add(self, at_s: float, kind: int, row: int, request: Request | None) -> None:
        heappush(self._due, (at_s, kind, row, request))  # type: ignore[misc]  # a request in arrivals alone
        if self._pause is not None and at_s < self._until_s:
            self._until_s = at_s
            self._pause = self._clock.move(self._pause, at_s, self._phase(at_s))

    def _phase(self, at_s: float) -> EventPriority:
        """What is born now comes after all that ends now."""
        return URGENT if at_s > self._clock.now else FOLLOW_UP

    def serve(self) -> Generator[Event, object, None]:
        """Sleep until something is due, and let it happen, for ever."""
        clock, due = self._clock, self._due
        while True:
            while due and due[0][0] <= clock.now:
                _, kind, row, request = heappop(due)
                if kind == _ARRIVAL:
                    self._given_to[row] = self.servers.submit(request)
                elif row in self._given_to:
                    self.servers.abort(self._given_to.pop(row), row)
            self._until_s = due[0][0] if due else inf
            self._pause = clock.at(self._until_s, URGENT) if due else clock.event()
            yield self._pause
            self._pause = None


@no_garbage_collection()
def simulate_listening(
    workload: Workload,
    groups: Sequence[ReplicaGroup],
    make_listener: Callable[[Inlet], OnEnd],
    *,
    router: str = "round_robin",
    signal_interval_s: float = 0.0,
    fast_forward: bool = True,
    log_decisions: bool = False,
    link: LinkSpeed | None = None,
) -> Run:
    """`simulate_fleet` with the function that `make_listener` returns being called at each end."""
    clock = Clock()
    inlet = Inlet(clock, workload)
    cluster = Cluster(
        clock,
        groups,
        load_router(router),
        Recorder(sum(group.replicas for group in groups)),
        signal_interval_s=signal_interval_s,
        fast_forward=fast_forward,
        log_decisions=log_decisions,
        on_end=make_listener(inlet),
        link=link,
    )
    inlet.servers = cluster.dispatch
    clock.process(inlet.serve())
    clock.run()
    return Run(cluster.records(workload), cluster.fleet.decisions())
