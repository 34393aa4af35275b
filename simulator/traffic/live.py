"""Requests from outside, while the run goes on: a server's clients are real, its engine is the simulation.

Nothing that happens here depends on when the caller looks. What comes from outside gets a time of its own, later than
all that has happened and than all that came before it; the rest is the run that the recorded requests would have. So
`simulate_fleet` on `LiveTraffic.workload()` makes the same decisions at the same times.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from math import inf, nan, nextafter
from typing import Protocol

import numpy as np

from simulator.engine.clock import URGENT, Clock
from simulator.engine.replica import Replica
from simulator.fleet.cluster import Cluster
from simulator.fleet.dispatch import LinkSpeed
from simulator.fleet.gateway import FlowControl, Gateway
from simulator.fleet.group import ReplicaGroup
from simulator.fleet.router import Router
from simulator.front_end import NO_FRONT_END, FirstTokens, FrontEnd
from simulator.metrics.latency import Slo
from simulator.request import Request
from simulator.request_state import DECODING, RequestState
from simulator.results.recorder import Recorder
from simulator.results.records import CallColumns, Cause, Floats, Records, Status
from simulator.workload import Workload, leaves_s

# Requests that have come, as a workload: what a trace of them holds.


def recorded(requests: Sequence[Request], patience_s: Mapping[int, float]) -> Workload:
    """The requests in order of arrival; `patience_s` has the rows whose clients left before the end of the answer."""

    def integers(name: str) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        return np.array([getattr(request, name) for request in requests], dtype=np.int64)

    names = {name: index for index, name in enumerate(dict.fromkeys(r.class_name for r in requests))}
    patience = np.full(len(requests), nan)
    for row, seconds in patience_s.items():
        patience[row] = seconds
    sessions = [request.session_id for request in requests]
    content = [request.content for request in requests]
    return Workload(
        arrival_s=np.array([request.arrival_s for request in requests], dtype=np.float64),
        input_tokens=integers("input_tokens"),
        output_tokens=integers("output_tokens"),
        max_tokens=integers("max_tokens"),
        priority=integers("priority"),
        class_index=np.array([names[request.class_name] for request in requests], dtype=np.int64),
        class_names=tuple(names),
        request_ids=[request.request_id for request in requests],
        session_ids=sessions if any(name is not None for name in sessions) else None,
        content=content if any(each is not None for each in content) else None,
        patience_s=patience if patience_s else None,
    )


class Listener(Protocol):
    """Is told of what clients see, in the engine's time; a front end may lie between it and them."""

    def has_tokens(self, row: int, tokens: int, at_s: float) -> None:
        """A request has so many tokens at `at_s`, which may be later than now: a step's results on their way."""

    def ended(self, row: int, status: Status, at_s: float, cause: Cause | None) -> None:
        """A request was rejected or its client's abort was noticed; `FINISHED` comes after its last tokens."""

    def left(self, live: RequestState, replica: int, status: Status) -> None:
        """The engine lets a request go: its times and counts, for measurements."""


class LiveTraffic:
    """A run in progress, with one event a step. Time stands still between the calls of `advance`.

    Rows count the requests in order of arrival. The first arrives at time 0. The other arguments are those of
    `simulate_fleet`.
    """

    def __init__(
        self,
        groups: Sequence[ReplicaGroup],
        listener: Listener,
        *,
        router: Router,
        signal_interval_s: float = 0.0,
        log_decisions: bool = False,
        front_end: FrontEnd = NO_FRONT_END,
        slo: Slo | None = None,
        link: LinkSpeed | None = None,
        flow_control: FlowControl | None = None,
    ) -> None:
        self._clock = Clock()
        self._listener = listener
        self._front_end_s = front_end.fixed_s  # of all; some answers are later still, as in `Clients`
        self._first_tokens = FirstTokens(front_end)
        recorder = Recorder(sum(group.replicas for group in groups))
        self._cluster = Cluster(
            self._clock,
            groups,
            router,
            recorder,
            signal_interval_s=signal_interval_s,
            fast_forward=False,
            log_decisions=log_decisions,
            on_end=self._on_end,
            first_tokens=self._first_tokens,
            slo=slo,
            link=link,
            flow_control=flow_control,
        )
        dispatch = self._cluster.dispatch
        self._gateway = dispatch if isinstance(dispatch, Gateway) else None
        self._last_s = -1.0  # of what came from outside
        self._requests: list[Request] = []
        self._patience_s: dict[int, float] = {}
        self._given_to: dict[int, int] = {}  # requests that have not ended, and their replica; -1 before they arrive
        self._tokens: dict[int, int] = {}  # of these, the tokens told of
        self._touched: dict[int, None] = {}  # replicas that may have new tokens
        self._streams = [replica.state.traits.streams for replica in self.replicas]
        for replica in self.replicas:
            replica.changed = partial(self._changed, replica.changed)
        recorder.watch(listener.left)
        if self._cluster.halves is not None:
            self._cluster.halves.on_prefilled = self._prefilled

    @property
    def replicas(self) -> Sequence[Replica]:
        return self._cluster.fleet.replicas

    @property
    def now_s(self) -> float:
        """The time of what happened last."""
        return self._clock.now

    @property
    def next_s(self) -> float:
        """The time of what happens next; infinity where that depends on the outside, or it only is a look at signals.

        Looks are caught up on before the next arrival, as they go on only while anything else can happen. The clock
        starts with the first request.
        """
        return self._clock.peek() if self._requests and self._clock.has_events else inf

    @property
    def unfinished(self) -> int:
        """Requests that have not ended."""
        return len(self._given_to)

    def request(self, row: int) -> Request:
        """A request that has come."""
        return self._requests[row]

    def delay_s(self, row: int) -> float:
        """By how much the client of a request that has begun sees its tokens later."""
        token_s = self._first_tokens.front_end.per_prompt_token_s
        return self._first_tokens.delay_s(row) + token_s * self._requests[row].input_tokens

    def replica_of(self, row: int) -> int:
        """The replica that has a request; -1 before it has arrived, and after its end."""
        replica = self._given_to.get(row, -1)
        return self._gateway.replica_of(row) if replica < 0 and self._gateway is not None else replica

    # From outside

    def submit(self, requests: Sequence[Request], at_s: float) -> float:
        """Let requests arrive together at `at_s`, or as soon after as may be; returns when that is.

        Their rows and arrival times are set here, the rows in their order from `num_requests` on.
        """
        arrival_s = self._next_free(at_s) if self._requests else 0.0
        first = self.num_requests
        mine = [r._replace(row=row, arrival_s=arrival_s) for row, r in enumerate(requests, first)]
        self._requests += mine
        self._given_to |= dict.fromkeys([request.row for request in mine], -1)
        self._last_s = arrival_s
        self._clock.call(arrival_s, partial(self._arrive, mine), URGENT)
        return arrival_s

    @property
    def num_requests(self) -> int:
        """Requests that have come."""
        return len(self._requests)

    def abort(self, row: int, at_s: float) -> None:
        """The client of a request leaves at `at_s`, or as soon after as may be; without effect if it has ended."""
        if row not in self._given_to or row in self._patience_s:
            return
        arrival_s, late_s = self._requests[row].arrival_s, self._front_end_s
        earliest_s = self._next_free(at_s)
        patience_s = earliest_s - arrival_s + late_s
        while (leave_s := leaves_s(arrival_s, patience_s, late_s)) < earliest_s:
            patience_s = nextafter(patience_s, inf)
        self._patience_s[row] = patience_s
        self._last_s = leave_s
        self._clock.call(leave_s, partial(self._leave, row), URGENT)

    def advance(self, until_s: float) -> None:
        """Let everything happen up to `until_s`."""
        while self.next_s <= until_s:
            self._step()

    def finish(self) -> Records:
        """Let the run come to its end, without anything more from outside; returns what happened."""
        while self._clock.peek() < inf:
            self._step()
        workload = self.workload()
        records = self._cluster.records(workload)
        return records if not self._patience_s else self._with_clients(records, workload)

    def decisions(self) -> list[dict[str, object]] | None:
        """See `Fleet.decisions`."""
        return self._cluster.fleet.decisions()

    def delays_s(self) -> Floats | None:
        """See `FirstTokens.of_all`."""
        prompts = np.array([request.input_tokens for request in self._requests], dtype=np.int64)
        return self._first_tokens.of_all(self.num_requests, prompts)

    def workload(self) -> Workload:
        """The requests that have come, as a trace of them would hold them."""
        return recorded(self._requests, self._patience_s)

    def _next_free(self, at_s: float) -> float:
        return max(at_s, nextafter(max(self._clock.now, self._last_s), inf))

    def _arrive(self, requests: Sequence[Request]) -> None:
        admission = self._cluster.fleet.admission
        if len(self.replicas) == 1:
            admission = self.replicas[0].completion.admission
        # All replicas are one server: a call is admitted or rejected as a whole, unless a gateway takes it apart.
        if admission is not None and self._gateway is None:
            admission.expect(range(requests[0].row, requests[-1].row + 1))
        for request in requests:
            self._tokens[request.row] = 0
            replica = self._cluster.dispatch.submit(request)
            if request.row in self._given_to:  # not rejected
                self._given_to[request.row] = replica

    def _leave(self, row: int) -> None:
        if row in self._given_to:
            self._cluster.dispatch.abort(self._given_to[row], row)
        else:
            del self._patience_s[row]  # it ended in between

    # To the outside

    def _step(self) -> None:
        self._clock.step()
        if self._touched:
            touched = list(self._touched)
            self._touched.clear()
            for index in touched:
                self._tell_tokens(self.replicas[index], self._streams[index])

    def _changed(self, told: Callable[[int], None] | None, index: int) -> None:
        if told is not None:
            told(index)
        self._touched[index] = None

    def _tell_tokens(self, replica: Replica, streams: bool) -> None:
        """Tell of the tokens that a replica's requests have got since the last time."""
        if not streams:
            return
        told, batch = self._tokens, replica.state.batch
        for live in replica.state.running:
            row = live.row
            # A request may decode on until its last token is known.
            tokens = min(live.output_tokens_so_far, self._requests[row].output_tokens)
            if tokens > told.get(row, tokens):
                told[row] = tokens
                ticked = live.status is DECODING and not live.paused and live.clock.ticks > live.join_tick
                at_s = batch.last_end_s if ticked and not batch.is_overrun(live) else live.last_token_s
                self._listener.has_tokens(row, tokens, at_s)

    def _prefilled(self, row: int, at_s: float) -> None:
        """A request has its first token from one replica, and goes on at another."""
        self._tokens[row] = 1
        self._listener.has_tokens(row, 1, at_s)

    def _on_end(self, row: int, status: Status, end_s: float, cause: Cause | None) -> None:
        request, told = self._requests[row], self._tokens.pop(row, 0)
        self._given_to.pop(row, None)
        if status is Status.FINISHED and told < request.output_tokens:
            self._listener.has_tokens(row, request.output_tokens, end_s)
        self._listener.ended(row, status, end_s, cause)

    def _with_clients(self, records: Records, workload: Workload) -> Records:
        """The records with the clients' side, as `Clients.seen` of the recorded requests has it."""
        rows = np.arange(len(workload))
        left_s = np.full(len(workload), nan)
        for row in self._patience_s:
            arrival_s = self._requests[row].arrival_s
            left_s[row] = leaves_s(arrival_s, self._patience_s[row], self._front_end_s) + self._front_end_s
        return replace(records, calls=CallColumns(np.ones_like(rows), rows, left_s))
