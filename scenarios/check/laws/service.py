"""Service: every request is served, equals in the order of their arrival, and no engine rests while one waits."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from scenarios.check.experiment import Breach, Experiment
from simulator.results.records import Records, Status
from simulator.simulate import Run


def service(experiment: Experiment, run: Run) -> Breach | None:
    """Every request that is not rejected on arrival finishes; none starves, and none stays paused for ever."""
    requests = run.records.requests
    left = np.flatnonzero(requests.status == Status.UNFINISHED)
    if not len(left):
        return None
    row = int(left[0])
    ever = "was never scheduled" if np.isnan(requests.scheduled_s[row]) else "is in the batch or preempted"
    others = f" and {len(left) - 1} more" if len(left) > 1 else ""
    what = (
        f"the run ends with request {run.records.request_id(row)}{others} unserved: it {ever}, with "
        f"{requests.output_tokens[row]} output tokens, and the policy plans nothing more"
    )
    ends = run.records.step_end_s
    return Breach(what, time_s=float(max([*ends, requests.arrival_s[row]])))


@dataclass(frozen=True, slots=True)
class Rest:
    """A time in which a replica did nothing, and the rows of the requests that waited at its end, by arrival."""

    from_s: float
    to_s: float
    waiting: list[int]


def rests(records: Records) -> Iterator[Rest]:
    """Yield all rests of all replicas, also the one before the first step and the one after the last."""
    requests, rows = records.requests, records.rows
    for replica in range(records.replicas):
        mine = rows.replica == replica
        starts = [*rows.start_s[mine].tolist(), np.inf]
        ends = [-1.0, *rows.end_s[mine].tolist()]
        here = (requests.replica == replica) & (requests.status != Status.REJECTED)
        for from_s, to_s in zip(ends, starts, strict=True):
            if to_s > from_s:
                waits = here & (requests.arrival_s <= to_s) & ~(requests.last_token_s <= from_s)
                yield Rest(from_s, to_s, np.flatnonzero(waits).tolist())


def work(experiment: Experiment, run: Run) -> Breach | None:
    """The engine does not rest while a request waits: nothing runs then, so the whole memory is there for it."""
    records = run.records
    for rest in rests(records):
        late = [row for row in rest.waiting if records.requests.arrival_s[row] < rest.to_s]
        if late and rest.to_s != np.inf:
            from_s = max(rest.from_s, float(records.requests.arrival_s[late[0]]))
            what = f"rests {rest.to_s - from_s:g} s while request {records.request_id(late[0])} waits"
            return Breach(what, time_s=from_s)
    return None


def order(experiment: Experiment, run: Run) -> Breach | None:
    """Of two requests that a policy sees as equals but for their arrival, the first to come is scheduled first."""
    records, workload = run.records, experiment.workload
    requests = records.requests
    first: dict[tuple[float, ...], int] = {}  # of each kind, the one scheduled last so far
    for row in np.lexsort((requests.row, requests.arrival_s)).tolist():
        seen = (workload.input_tokens, workload.max_tokens, workload.priority, workload.class_index, requests.replica)
        kind = tuple(int(column[row]) for column in seen)
        since_s = requests.scheduled_s[row]
        if np.isnan(since_s):
            continue
        before = first.setdefault(kind, row)
        if since_s < requests.scheduled_s[before]:
            names = records.request_id(row), records.request_id(before)
            what = f"request {names[0]} is scheduled before request {names[1]}, which came first and looks the same"
            return Breach(what, time_s=float(since_s))
        first[kind] = row
    return None
