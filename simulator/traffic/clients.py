"""Clients: they let requests arrive, leave when their patience runs out, and try again; and the requests so issued."""

from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from heapq import heappop, heappush
from math import inf, nan
from typing import Any, NamedTuple, Protocol

import numpy as np

from simulator.engine.clock import FOLLOW_UP, URGENT, Clock, EventPriority
from simulator.errors import InputError
from simulator.front_end import FirstTokens
from simulator.request import Request
from simulator.results.records import CallColumns, Cause, Records, Status
from simulator.traffic.sources import Call, Script, Source, Users
from simulator.workload import Client, Workload, leaves_s, requests_of_tasks

# The requests that have arrived, in order of arrival: the workload that a run turned out to have.

_COLUMNS = ("input_tokens", "output_tokens", "max_tokens", "priority", "class_index")


class Issued:
    """Collects arrivals; a request's row in the run is its place here."""

    def __init__(self) -> None:
        self._source = array("i")
        self._row = array("q")
        self._arrival_s = array("d")
        self._attempt = array("i")
        self._first = array("q")
        self._left_s = array("d")

    def __len__(self) -> int:
        return len(self._row)

    def add(self, source: int, row: int, attempt: int, first: int, arrival_s: float) -> int:
        """A request arrives: its row in the run. `first` is that of its first attempt, -1 for the first itself."""
        mine = len(self._row)
        self._source.append(source)
        self._row.append(row)
        self._arrival_s.append(arrival_s)
        self._attempt.append(attempt)
        self._first.append(mine if first < 0 else first)
        self._left_s.append(nan)
        return mine

    def leaves(self, row: int, at_s: float) -> None:
        """The client of a request lost its patience."""
        self._left_s[row] = at_s

    def calls(self) -> CallColumns:
        """Columns of the clients' side, for the records."""
        return CallColumns(
            attempt=np.array(self._attempt, dtype=np.int64),
            first_row=np.array(self._first, dtype=np.int64),
            left_s=np.array(self._left_s, dtype=np.float64),
        )

    def workload(self, sources: Sequence[Workload]) -> Workload:
        """The requests with their arrival times; `sources` are the workloads that they came from."""
        source, row = np.array(self._source, dtype=np.int64), np.array(self._row, dtype=np.int64)
        columns: dict[str, Any] = {name: np.zeros(len(row), dtype=np.int64) for name in _COLUMNS}
        names: list[str] = [""] * len(row)
        sessions: list[str | None] = [None] * len(row)
        turns = np.ones(len(row), dtype=np.int64)
        tasks: list[str | None] = [None] * len(row)
        task_requests = np.zeros(len(row), dtype=np.int64)
        for index, rows in enumerate(sources):
            mine = np.flatnonzero(source == index)
            for name in _COLUMNS:
                columns[name][mine] = getattr(rows, name)[row[mine]]
            turns[mine] = rows.session_turns()[row[mine]]
            for here in mine.tolist():
                there = row.item(here)
                names[here] = attempt_id(rows.request_id(there), self._attempt[here])
                if rows.session_ids is not None:
                    sessions[here] = rows.session_ids[there]
                if rows.task_ids is not None:
                    tasks[here] = rows.task_ids[there]
            if rows.task_ids is not None:
                task_requests[mine] = requests_of_tasks(rows.task_ids)[row[mine]]
        in_sessions = any(name is not None for name in sessions)
        return Workload(
            arrival_s=np.array(self._arrival_s, dtype=np.float64),
            **columns,
            class_names=sources[0].class_names,
            request_ids=names,
            session_ids=sessions if in_sessions else None,
            turns=turns if in_sessions else None,
            task_ids=tasks if task_requests.any() else None,
            task_requests=task_requests if task_requests.any() else None,
        )


def attempt_id(request_id: str, attempt: int) -> str:
    """The name of an attempt: the first has the request's name, the others add their number."""
    return request_id if attempt == 1 else f"{request_id}#{attempt}"


def issue(rows: Workload, there: int, here: int, arrival_s: float, attempt: int) -> Request:
    """The request of row `there` of a source, as row `here` of the run."""
    request = rows.request(there)
    return request._replace(row=here, arrival_s=arrival_s, request_id=attempt_id(request.request_id, attempt))


# Clients: they let requests arrive, leave when their patience runs out, and try again.

MOST_AT_ONCE = 100_000  # requests that follow others at one time


class Servers(Protocol):
    """The servers that clients talk to."""

    def submit(self, request: Request) -> int:
        """`request` arrives now; returns the replica that it went to."""

    def abort(self, replica: int, row: int) -> None:
        """The client of a request leaves now."""

    def has_begun(self, replica: int, row: int) -> bool:
        """True if the client of a request that has not ended has its first token by now."""


class _Attempt(NamedTuple):
    """An attempt at a request of a source; `first` is the run's row of the first attempt, -1 for the first itself."""

    source: int
    row: int
    number: int
    first: int


class _Arrival(NamedTuple):
    """An attempt that will arrive; they are told apart, at one time, by source, row and number."""

    at_s: float
    attempt: _Attempt
    is_first_of: bool  # one of `Source.first`: the next of these follows
    sent_s: float = -1.0  # when its client sent it, if it was tokenised since


class _Waiting(NamedTuple):
    """An attempt that has arrived and not ended, on the replica that has it."""

    attempt: _Attempt
    request: int  # the run's row of its first attempt
    client: Client
    replica: int
    arrival_s: float


class Clients:
    """The clients of a workload that answers back.

    A front end lies between the engine and a client: it has a token so much later than the engine, and reacts then.
    What was known before comes first at its time, and what clients make of the ends of that time last
    (`simulator.engine.clock`): an answer at the very end of a timeout is too late. Either way clients leave before
    requests arrive, the former in order of arrival, the latter in order of source, row and attempt. So nothing depends
    on the order in which replicas tell of ends.
    """

    def __init__(self, clock: Clock, workload: Workload, first_tokens: FirstTokens) -> None:
        self.servers: Servers | None = None
        self._clock = clock
        self._sources: list[Source] = [Script(workload), *[Users(loop) for loop in workload.loops]]
        self._firsts: list[Iterator[Call]] = [source.first() for source in self._sources]
        self._clients = workload.clients or (Client(),) * len(workload.class_names)
        self._until_s = workload.until_s
        self._first_tokens = first_tokens
        self._front_end_s = first_tokens.front_end.fixed_s  # of all; some answers are later still
        self._token_s = first_tokens.front_end.per_prompt_token_s if workload.follows_answers else 0.0
        self._tokenised_s = 0.0  # until when prompts are tokenised, one after another
        self._issued = Issued()
        self._waiting: dict[int, _Waiting] = {}  # by the run's row
        self._arrivals: list[_Arrival] = []  # heap
        self._patience: list[tuple[float, int, bool]] = []  # heap: when, row, whether only for the first token
        self._wake: tuple[float, EventPriority] = (inf, URGENT)  # the earliest event asked for: time and rank
        self._at_once = 0, -1.0  # arrivals at this time
        for index in range(len(self._sources)):
            self._expect_first(index)
        self._ask(at_start=True)

    # What the records need

    def workload(self) -> Workload:
        """The requests that have arrived, in order of arrival."""
        return self._issued.workload([source.rows for source in self._sources])

    def seen(self, records: Records) -> Records:
        """The records with the clients' side: attempts, and as aborted what was computed for no client."""
        calls = self._issued.calls()
        requests = records.requests
        wasted = ~np.isnan(calls.left_s) & (requests.status == Status.FINISHED)  # the server was not told
        computed = requests.input_tokens + requests.output_tokens - 1 + requests.recomputed_tokens
        seen = replace(
            requests,
            status=np.where(wasted, Status.ABORTED, requests.status),
            aborted_tokens=np.where(wasted, computed - requests.cached_tokens, requests.aborted_tokens),
        )
        behave = any(client != Client() for client in self._clients) or self._sources[0].rows.patience_s is not None
        return replace(records, requests=seen, calls=calls if behave else None)

    # Ends

    def on_end(self, row: int, status: Status, end_s: float, cause: Cause | None) -> None:
        """A request has ended at the server, now."""
        waiting = self._waiting.pop(row, None)
        if waiting is None:
            return  # its client has left
        at_s = end_s + self._first_tokens.delay_s(row)
        left_s = self._left_s(waiting, row, end_s) if status is Status.FINISHED else inf
        if left_s < inf:  # the server was not told in time
            self._issued.leaves(row, left_s)
            self._fail(waiting, left_s, may_retry=True)
        elif status is Status.FINISHED:
            attempt = waiting.attempt
            self._follow(attempt.source, self._sources[attempt.source].answered(attempt.row, at_s))
        else:
            self._fail(waiting, at_s, may_retry=cause not in (None, Cause.TOO_LARGE))
        self._ask()

    def _left_s(self, waiting: _Waiting, row: int, end_s: float) -> float:
        """When the client of a request that finished at `end_s` left all the same; infinity if it did not.

        Until a request has begun it is not known by how much its tokens are late, so that its client's patience is
        looked at as if they were late by the least.
        """
        more_s = self._first_tokens.delay_s(row) - self._front_end_s
        if more_s == 0:
            return inf
        client, came_s = waiting.client, waiting.arrival_s - self._front_end_s
        left_s = inf
        if min(self._first_tokens.at_s(row), end_s) + more_s >= came_s + client.ttft_timeout_s:
            left_s = waiting.arrival_s + client.ttft_timeout_s
        if end_s + more_s >= came_s + client.timeout_s:
            left_s = min(left_s, waiting.arrival_s + client.timeout_s)
        return left_s

    def _fail(self, waiting: _Waiting, at_s: float, *, may_retry: bool) -> None:
        """An attempt has failed, as its client knows at `at_s`: another one, or the request is given up."""
        source, row, number, _ = waiting.attempt
        client = waiting.client
        if may_retry and number < client.max_attempts:
            again = _Attempt(source, row, number + 1, waiting.request)
            later_s = client.backoff(self._sources[source].number(row), number)
            heappush(self._arrivals, _Arrival(at_s + later_s, again, False))
        else:
            self._follow(source, self._sources[source].failed(row, at_s))

    def _follow(self, source: int, calls: Iterable[Call]) -> None:
        for at_s, row in calls:
            if at_s < self._until_s:
                heappush(self._arrivals, _Arrival(at_s, _Attempt(source, row, 1, -1), False))

    def _expect_first(self, source: int) -> None:
        """The next of the source's requests that wait for no answer is to arrive."""
        call = next(self._firsts[source], None)
        if call is not None and call.arrival_s < self._until_s:
            heappush(self._arrivals, _Arrival(call.arrival_s, _Attempt(source, call.row, 1, -1), True))

    # Events

    def _ask(self, *, at_start: bool = False) -> None:
        """Ask for an event at the time of the next arrival or the next end of a client's patience."""
        now_s = self._clock.now
        while self._patience and self._patience[0][1] not in self._waiting:
            heappop(self._patience)
        at_s = min(self._arrivals[0].at_s if self._arrivals else inf, self._patience[0][0] if self._patience else inf)
        wake = at_s, URGENT if at_s > now_s or at_start else FOLLOW_UP
        if at_s < inf and wake < self._wake:
            self._wake = wake
            self._clock.call(at_s, partial(self._woken, wake), wake[1])

    def _woken(self, wake: tuple[float, EventPriority]) -> None:
        """The time has come, unless an earlier event was asked for since."""
        if wake != self._wake:
            return
        now_s = self._clock.now
        while True:
            if self._patience and self._patience[0][0] <= now_s:
                self._lose_patience(*heappop(self._patience))
            elif self._arrivals and self._arrivals[0].at_s <= now_s:
                self._arrive(heappop(self._arrivals))
            else:
                break
        self._wake = inf, URGENT
        self._ask()

    def _arrive(self, arrival: _Arrival) -> None:
        at_s, attempt, is_first_of, sent_s = arrival
        if sent_s < 0.0:
            if is_first_of:
                self._expect_first(attempt.source)
            else:
                self._count(at_s)
            if self._token_s > 0.0:
                self._tokenise(at_s, attempt)
                return
        else:
            at_s = sent_s
        row = self._issued.add(*attempt, at_s)
        rows = self._sources[attempt.source].rows
        request = issue(rows, attempt.row, row, at_s, attempt.number)
        client = self._clients[rows.class_index.item(attempt.row)]
        first = row if attempt.first < 0 else attempt.first
        self._waiting[row] = _Waiting(attempt, first, client, -1, at_s)
        assert self.servers is not None
        replica = self.servers.submit(request.reaching(arrival.at_s))
        if row not in self._waiting:
            return  # rejected
        self._waiting[row] = _Waiting(attempt, first, client, replica, at_s)
        own_s = inf if rows.patience_s is None else rows.patience_s.item(attempt.row)
        whole_s = own_s if own_s < client.timeout_s else client.timeout_s  # NaN is for ever
        for timeout_s, of_first_token in ((client.ttft_timeout_s, True), (whole_s, False)):
            if timeout_s < inf:
                heappush(self._patience, (leaves_s(at_s, timeout_s, self._front_end_s), row, of_first_token))

    def _tokenise(self, at_s: float, attempt: _Attempt) -> None:
        """Let a request reach the engine when its prompt is tokenised, after those that were sent before."""
        prompt = self._sources[attempt.source].rows.input_tokens.item(attempt.row)
        self._tokenised_s = max(self._tokenised_s, at_s) + self._token_s * prompt
        heappush(self._arrivals, _Arrival(self._tokenised_s, attempt, False, at_s))

    def _count(self, at_s: float) -> None:
        """Raise InputError where clients and server go round in circles without time going by."""
        count, since_s = self._at_once
        self._at_once = (count + 1, at_s) if at_s == since_s else (1, at_s)
        if count >= MOST_AT_ONCE:
            raise InputError(
                f"more than {MOST_AT_ONCE:,} requests follow one another at {at_s:g} s, where each is rejected",
                hint="a think_time_s or backoff_s above 0, or requests that fit",
            )

    def _lose_patience(self, at_s: float, row: int, of_first_token: bool) -> None:
        waiting = self._waiting.get(row)
        assert self.servers is not None
        if waiting is None:
            return
        if of_first_token and self.servers.has_begun(waiting.replica, row):
            more_s = self._first_tokens.delay_s(row) - self._front_end_s
            if more_s == 0 or self._first_tokens.at_s(row) + more_s < at_s:
                return
        del self._waiting[row]
        seen_s = at_s + self._front_end_s
        self._issued.leaves(row, seen_s)
        if waiting.client.cancels:
            self.servers.abort(waiting.replica, row)
        self._fail(waiting, seen_s, may_retry=True)
