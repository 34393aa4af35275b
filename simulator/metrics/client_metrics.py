"""The clients' side of a run: requests over all their attempts, sessions, and agents' tasks."""

from dataclasses import dataclass

import numpy as np

from simulator.metrics.latency import e2el_s, finished
from simulator.metrics.usage import jain
from simulator.metrics.window import Bools
from simulator.results.records import Floats, Ints, Records, Status


@dataclass(frozen=True, slots=True)
class ServedRequests:
    """Requests of clients that may try again, each counted once. Served, given up and unfinished add up to `requests`.

    A request is measured where its first attempt is. Its attempts are those that arrived; `given_up` have no attempt
    that was answered, and none under way.
    """

    requests: int
    attempts: int
    served: int
    given_up: int

    @property
    def attempts_per_request(self) -> float | None:
        return self.attempts / self.requests if self.requests else None


def served(records: Records, measured: Bools) -> ServedRequests | None:
    """The requests of the measured first attempts; None for a run whose clients wait for ever."""
    calls = records.calls
    if calls is None:
        return None
    rows = len(measured)
    first = calls.first_row
    answered = np.zeros(rows, dtype=np.bool_)
    answered[first[finished(records)]] = True
    open_still = np.zeros(rows, dtype=np.bool_)
    open_still[first[records.requests.status == Status.UNFINISHED]] = True
    asked = measured & (calls.attempt == 1)
    lost = asked & ~answered & ~open_still
    return ServedRequests(
        int(asked.sum()), int(np.count_nonzero(asked[first])), int((asked & answered).sum()), int(lost.sum())
    )


@dataclass(frozen=True, slots=True)
class Sessions:
    """Sessions with a measured request. A session lasts from its first arrival to its last token."""

    sessions: int
    mean_turns: float  # answered requests of a session
    mean_duration_s: float  # of sessions with an answer; NaN without one
    jain: float  # Jain's index of their mean end-to-end latencies; NaN for fewer than two with an answer


def sessions(records: Records, measured: Bools) -> Sessions | None:
    """The sessions of the measured requests; None for a run without sessions."""
    if records.session_ids is None:
        return None
    numbers: dict[str, int] = {}
    number = np.array(
        [-1 if name is None else numbers.setdefault(name, len(numbers)) for name in records.session_ids], dtype=np.int64
    )
    mine = measured & (number >= 0)
    done = mine & finished(records)
    count = len(numbers)
    taken = np.bincount(number[mine], minlength=count) > 0
    if not taken.any():
        return None
    begins, ends = np.full(count, np.inf), np.full(count, np.nan)
    np.minimum.at(begins, number[mine], records.requests.arrival_s[mine])
    np.fmax.at(ends, number[done], records.requests.last_token_s[done])
    lasting = ends - begins
    known = taken & ~np.isnan(lasting)
    turns = np.bincount(number[done], minlength=count)
    waits = np.bincount(number[done], e2el_s(records)[done], count)
    even = jain(waits[turns > 0] / turns[turns > 0])
    return Sessions(
        int(taken.sum()),
        float(turns[taken].mean()),
        float(lasting[known].mean()) if known.any() else float("nan"),
        float("nan") if even is None else even,
    )


@dataclass(frozen=True, slots=True)
class Tasks:
    """Tasks whose first request is measured. The arrays have an entry for each that is done: all of it answered."""

    tasks: int
    seconds: Floats
    requests: Ints
    input_tokens: Ints
    output_tokens: Ints


def tasks(records: Records, measured: Bools) -> Tasks | None:
    """The tasks of a run; None where no measured request begins one."""
    if records.task_ids is None or records.task_requests is None:
        return None
    numbers: dict[str, int] = {}
    number = np.array(
        [-1 if name is None else numbers.setdefault(name, len(numbers)) for name in records.task_ids], dtype=np.int64
    )
    within, count = np.flatnonzero(number >= 0), len(numbers)
    arrival_s = records.requests.arrival_s
    order = within[np.argsort(arrival_s[within], kind="stable")]
    first = np.full(count, -1)
    first[number[order[::-1]]] = order[::-1]  # the last one written is the first that arrived
    chosen = measured[first]
    if not chosen.any():
        return None
    answered = within[finished(records)[within]]  # of several attempts at a request at most one is

    def total(column: Ints) -> Ints:
        return np.bincount(number[answered], column[answered], count).astype(np.int64)

    ends = np.full(count, -np.inf)
    np.maximum.at(ends, number[answered], records.requests.last_token_s[answered])
    requests = np.bincount(number[answered], minlength=count)
    done = chosen & (requests == records.task_requests[first])
    return Tasks(
        int(chosen.sum()),
        (ends - arrival_s[first])[done],
        requests[done],
        total(records.requests.input_tokens)[done],
        total(records.requests.output_tokens)[done],
    )
