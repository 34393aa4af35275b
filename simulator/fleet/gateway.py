"""Flow control at the gateway: its settings, and the queue before the router while the replicas are saturated."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from heapq import heappop, heappush
from math import inf, nan
from types import MappingProxyType
from typing import Literal

from simulator.engine.admission import ReplicaLoad
from simulator.engine.clock import FOLLOW_UP, Clock
from simulator.engine.completion import OnEnd
from simulator.fleet.disaggregation import Disaggregation
from simulator.fleet.dispatch import Dispatch
from simulator.request import Request
from simulator.request_state import DecodeClock, RequestState
from simulator.results.recorder import Recorder
from simulator.results.records import Cause, Passage, Status

# What flow control at a gateway may be told: its settings, their defaults, and how full the replicas are.
#
# All of it is llm-d's, below pkg/epp/ of llm-d-router. Saturation is the mean over the replicas of max(waiting /
# `queue_depth_threshold`, used KV / `kv_cache_util_threshold`) (`Saturation` in framework/plugins/flowcontrol/
# saturationdetector/utilization/detector.go, 39142fb9; 5 and 0.8 in its config.go). The other detector counts what
# was sent and has not ended, which the gateway knows at once (saturationdetector/concurrency/detector.go, 3fdd2e6f;
# 100 requests and 1,000,000 tokens in its config.go): requests / (replicas x `max_concurrency`); or tokens /
# (replicas x `max_token_concurrency`), prompt tokens not known to be cached of requests without a first token
# (`simulator/fleet/dispatch.py`); or `hybrid`, the mean over the replicas of the larger of the two (its pull
# request 1991). With a `min_ceiling` below 1 bands pass up to less saturation the less important they are, from 1
# for the first in equal steps (usagelimits/priorityholdback, domain rank). A request waits 60 s at most
# (flowcontrol/controller/config.go, 0443359b).

Detector = Literal["utilization", "concurrency"]
ConcurrencyMode = Literal["requests", "tokens", "hybrid"]
Fairness = Literal["global_strict", "round_robin"]
Ordering = Literal["fcfs", "deadline"]
NONE_SENT: Mapping[int, int] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class FlowControl:
    """What a gateway does with requests while the replicas are saturated; `ttl_s` may be infinite."""

    detector: Detector = "utilization"
    max_concurrency: int = 100
    concurrency_mode: ConcurrencyMode = "requests"
    max_token_concurrency: int = 1_000_000
    queue_depth_threshold: int = 5
    kv_cache_util_threshold: float = 0.8
    fairness: Fairness = "global_strict"
    ordering: Ordering = "fcfs"
    ttl_s: float = 60.0
    max_requests: int | None = None
    max_requests_per_priority: int | None = None
    min_ceiling: float = 1.0

    @property
    def counts(self) -> bool:
        """Whether the gateway counts what it has sent, instead of looking at the replicas."""
        return self.detector == "concurrency"

    @property
    def counts_tokens(self) -> bool:
        """Whether it counts tokens."""
        return self.counts and self.concurrency_mode != "requests"

    def saturation(self, loads: Sequence[ReplicaLoad], tokens: Mapping[int, int] = NONE_SENT) -> float:
        """How full the replicas are, in the mean; 1 or more: nothing passes. `tokens` are those sent, by replica."""
        if not loads:
            return 1.0
        if not self.counts:
            return sum([self._use(load) for load in loads]) / len(loads)
        most, most_tokens = self.max_concurrency, self.max_token_concurrency
        requests = [load.num_unfinished for load in loads]
        if not self.counts_tokens:
            return sum(requests) / (most * len(loads))
        sent = [tokens.get(load.index, 0) for load in loads]
        if self.concurrency_mode == "tokens":
            return sum(sent) / (most_tokens * len(loads))
        fuller = [max(one / most, other / most_tokens) for one, other in zip(requests, sent, strict=True)]
        return sum(fuller) / len(loads)

    def _use(self, load: ReplicaLoad) -> float:
        queued = (load.num_waiting - load.expected) / self.queue_depth_threshold
        return max(queued, load.kv_utilization / self.kv_cache_util_threshold)

    def ceilings(self, bands: int) -> list[float]:
        """The saturation up to which each of so many bands passes, the most important first."""
        step = (1.0 - self.min_ceiling) / (bands - 1) if bands > 1 else 0.0
        return [1.0 - rank * step for rank in range(bands)]

    @property
    def expires(self) -> bool:
        """Whether a request waits for a limited time."""
        return self.ttl_s < inf


# Flow control at the gateway: requests queue before the router chooses, while the replicas are saturated.
#
# After the flow control of llm-d-router (before: the Gateway API Inference Extension), by its source, below
# pkg/epp/. What it may be told, and when replicas are saturated, stands above. A request
# enters the queue of its flow in the band of its priority, or is shed where these are full (`enqueue` and
# `hasCapacity` in flowcontrol/controller/internal/processor.go, 097961cf). One request is dispatched on each
# arrival and each millisecond (`Run`, `dispatchCycle`): from the most important band that has any, unless the pool
# is too saturated for that band; then nothing passes, so that what is less important does not come first. A request
# that waited `ttl_s` leaves unserved. Which flow of a band is next: that of the foremost request (`global_strict`),
# or each in turn, by name (fairness/roundrobin/roundrobin.go). A flow here is a class of the workload; a smaller
# priority is more important, as in vLLM. The gateway sees the loads that the router is given: with a
# `signal_interval_s`, those of the last look. Router and replica see a request that waited here as one that arrives
# as it is sent on. Prefill and decode apart, the mean is over the replicas of both sides, which are one pool there;
# what is still prefilled elsewhere does not wait yet.
#
# Not modelled: capacities in bytes, what expired counting until the sweep of each second, eviction in flight,
# estimated output tokens, and detectors as filters of the replicas (their `headroom`).

DISPATCH_S = 0.001  # `dispatchTicker` in processor.go


class Gateway:
    """Requests on their way to a router: the `Servers` of clients.

    `live` are the loads of all replicas by number as they are now, `look_s` the seconds between two looks at them.
    """

    def __init__(
        self,
        clock: Clock,
        dispatch: Dispatch | Disaggregation,
        control: FlowControl,
        recorder: Recorder,
        on_end: OnEnd | None,
        live: Sequence[ReplicaLoad],
        look_s: float = 0.0,
    ) -> None:
        self._clock = clock
        self.replicas = dispatch.replicas
        self._dispatch = dispatch
        self._control = control
        self._recorder = recorder
        self._on_end = on_end
        self._live = live
        self._look_s = 0.0 if control.counts else look_s
        self._bands: dict[int, dict[str, list[tuple[float, int]]]] = {}  # by priority and flow: heaps of key and row
        self._queued: dict[int, Request] = {}
        self._waiting: dict[int, int] = {}  # by priority
        self._last: dict[int, str] = {}  # by priority: the flow that was served last
        self._sent: dict[int, int] = {}  # replicas of requests that had to wait
        self._asked = False

    # Servers

    def submit(self, request: Request) -> int:
        """`request` arrives now; returns the replica that it went to, or -1: it waits here, or was shed."""
        here = self._waiting.get(request.priority, 0)
        for name, waiting in (("max_requests", len(self._queued)), ("max_requests_per_priority", here)):
            most = getattr(self._control, name)
            if most is not None and waiting >= most:
                self._recorder.passages.add((request.row, request.arrival_s, 0.0, Passage.SHED))
                self._refuse(request, Cause.QUEUE_FULL, f"flow_control.{name} is {most}")
                return -1
        band = self._bands.setdefault(request.priority, {})
        self._queued[request.row] = request
        self._waiting[request.priority] = here + 1
        heappush(band.setdefault(request.class_name, []), (self._key(request), request.row))
        self._cycle()
        if request.row in self._queued:
            if self._control.expires:
                at_s = request.arrival_s + self._control.ttl_s
                self._clock.call(at_s, partial(self._expire, request), FOLLOW_UP)
            self._ask()
            return -1
        return self._sent.pop(request.row)

    def abort(self, replica: int, row: int) -> None:
        """The client of a request leaves now; without effect if the request has ended."""
        request = self._queued.get(row)
        if request is None:
            self._dispatch.abort(self._sent.get(row, replica), row)
            return
        self._take_out(request, Passage.LEFT)
        self._end(request, Status.ABORTED, self._clock.now, None)

    def has_begun(self, replica: int, row: int) -> bool:
        """True if the client of a request got its first token before now."""
        return row not in self._queued and self._dispatch.has_begun(self._sent.get(row, replica), row)

    def replica_of(self, row: int) -> int:
        """The replica that a request went to which had to wait; -1 before."""
        return self._sent.get(row, -1)

    def abandon(self) -> None:
        """The run is over: record what still waits."""
        for request in list(self._queued.values()):
            self._take_out(request, Passage.WAITS)
            self._end(request, Status.UNFINISHED, nan, None)

    # Queues

    def _key(self, request: Request) -> float:
        """What comes first in a flow: the earlier arrival, or the earlier deadline."""
        if self._control.ordering == "fcfs":
            return request.arrival_s
        return inf if request.deadline_s is None else request.arrival_s + request.deadline_s

    def _cycle(self) -> bool:
        """Dispatch one request, if the replicas are not too full for the band whose turn it is."""
        saturation = self._saturation()
        priorities = sorted(self._bands)
        for priority, ceiling in zip(priorities, self._control.ceilings(len(priorities)), strict=True):
            if saturation >= ceiling:
                return False
            if self._waiting[priority]:
                request = self._next(priority)
                self._take_out(request, Passage.DISPATCHED)
                self._sent[request.row] = self._dispatch.submit(request.reaching(self._clock.now))
                return True
        return False

    def _saturation(self) -> float:
        loads = [load for side in self._dispatch.sides for load in side]
        if not self._control.counts:
            return self._control.saturation(loads)
        sent = self._dispatch.in_flight
        tokens = NONE_SENT if sent is None else sent.by_number
        return self._control.saturation([self._live[load.index] for load in loads], tokens)

    def _next(self, priority: int) -> Request:
        """The request of a band whose turn it is."""
        flows = {name: head for name, queue in self._bands[priority].items() if (head := self._head(queue)) is not None}
        names = sorted(flows)
        chosen = min(names, key=flows.__getitem__)
        if self._control.fairness == "round_robin":
            last = self._last.get(priority)
            chosen = next((name for name in names if last is not None and name > last), names[0])
            self._last[priority] = chosen
        return self._queued[flows[chosen][1]]

    def _head(self, queue: list[tuple[float, int]]) -> tuple[float, int] | None:
        """The first of a flow that still waits."""
        while queue and queue[0][1] not in self._queued:
            heappop(queue)
        return queue[0] if queue else None

    def _take_out(self, request: Request, passage: Passage) -> None:
        del self._queued[request.row]
        self._waiting[request.priority] -= 1
        now_s = self._clock.now
        self._recorder.passages.add((request.row, now_s, now_s - request.arrival_s, passage))

    # Time

    def _ask(self) -> None:
        """Try again at the next tick; where what is seen was too full, not before the next look."""
        if self._asked or not self._queued:
            return
        self._asked = True
        now_s = self._clock.now
        at_s = _after(now_s, DISPATCH_S)
        if self._look_s and self._saturation() >= 1.0:
            at_s = max(at_s, _after(now_s, self._look_s))
        self._clock.call(at_s, self._tick, FOLLOW_UP)

    def _tick(self) -> None:
        self._asked = False
        if self._queued:
            self._cycle()
            self._ask()

    def _expire(self, request: Request) -> None:
        if self._queued.get(request.row) is request:
            self._take_out(request, Passage.EXPIRED)
            self._refuse(request, Cause.EXPIRED, f"flow_control.ttl_s is {self._control.ttl_s:g}")

    # Ends

    def _refuse(self, request: Request, cause: Cause, why: str) -> None:
        self._recorder.reject_reasons[request.row] = f"{cause.value}: {why}"
        self._end(request, Status.REJECTED, nan, cause)

    def _end(self, request: Request, status: Status, released_s: float, cause: Cause | None) -> None:
        self._recorder.request(RequestState(request, DecodeClock(1)), -1, status, released_s)
        if self._on_end is not None and status is not Status.UNFINISHED:
            self._on_end(request.row, status, self._clock.now, cause)


def _after(now_s: float, interval_s: float) -> float:
    """The first multiple of the interval after now."""
    ticks = int(now_s / interval_s)
    while ticks * interval_s <= now_s:
        ticks += 1
    return ticks * interval_s
