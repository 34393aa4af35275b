"""Conservation: no request, token or block is lost, made up or counted twice."""

from collections import Counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scenarios.check.experiment import Breach, Experiment, asynchronous
from simulator.policy_traits import OptionalMembers
from simulator.request_state import DecodeClock, RequestState
from simulator.results.records import Records, Status
from simulator.simulate import Run


def conservation(experiment: Experiment, run: Run) -> Breach | None:
    """Submitted = finished + rejected + aborted + unfinished, each in one place at each step; tokens likewise."""
    return ends_once(experiment, run) or one_place(experiment, run) or tokens(experiment, run)


def ends_once(experiment: Experiment, run: Run) -> Breach | None:
    """Each request has one end; the log tells of each finish and abort once, and rejected requests are in no step."""
    records, decisions = run.records, run.decisions or []
    requests = records.requests
    if requests.row.tolist() != list(range(len(experiment.workload))):
        return Breach(f"{len(experiment.workload)} requests were submitted, {len(requests.row)} ended")
    finished, aborted = _names(records, Status.FINISHED), _names(records, Status.ABORTED)
    rejected = np.flatnonzero(requests.status == Status.REJECTED)
    if sorted(records.reject_reasons) != rejected.tolist() or not all(records.reject_reasons.values()):
        return Breach(f"reasons are given for {sorted(records.reject_reasons)}, rejected are {rejected.tolist()}")
    told = Counter(request_id for step in decisions for request_id in step["finished"])
    if told != Counter(finished):
        return Breach(f"finished are {sorted(finished)}, the steps tell of {dict(told)}")
    told = Counter(request_id for step in decisions for request_id in step.get("aborted", []))
    if not told <= Counter(aborted):
        return Breach(f"aborted are {sorted(aborted)}, the steps tell of {dict(told)}")
    seen = {request_id for step in decisions for request_id in step["running"] + step["waiting"]}
    if turned_away := sorted(seen & _names(records, Status.REJECTED)):
        return Breach(f"rejected requests {turned_away} wait or run")
    done = requests.status == Status.FINISHED
    if not np.isnan(requests.scheduled_s[rejected]).all() or np.isnan(requests.last_token_s[done]).any():
        return Breach("a rejected request was scheduled, or a finished one has no last token")
    return None


def one_place(experiment: Experiment, run: Run) -> Breach | None:
    """At every step each request that has arrived, and neither finished nor was aborted, either waits or runs.

    The log does not tell of requests that were aborted before their replica's first step.
    """
    records, decisions = run.records, run.decisions or []
    requests = records.requests
    told = {request_id for step in decisions for request_id in step.get("aborted", [])}
    gone = {records.request_id(row) for row in records.reject_reasons} | (_names(records, Status.ABORTED) - told)
    unknown: dict[int, dict[str, Any]] = {}  # a replica's last step: while it runs no plan knows who finished with it
    for step in sorted(decisions, key=lambda step: float(step["t_end_s"])):
        planned_s = step.get("t_schedule_s", step["t_start_s"])
        last = unknown.get(step["replica"])
        if last is not None and planned_s >= last["t_end_s"] > last["t_start_s"]:  # the plan waited for the results
            gone.update(unknown.pop(step["replica"])["finished"])
        arrived = np.flatnonzero((requests.arrival_s <= planned_s) & (requests.replica == step["replica"]))
        expected = Counter({records.request_id(row) for row in arrived.tolist()} - gone)
        here = Counter(step["running"] + step["waiting"])
        if here != expected:
            wrong = sorted((here - expected) + (expected - here))
            return Breach.at(step, f"request {wrong[0]} is in {here[wrong[0]]} places, not {expected[wrong[0]]}")
        if not set(step["scheduled"]) <= set(step["running"]):
            return Breach.at(step, f"schedules {sorted(step['scheduled'])}, running are {step['running']}")
        gone.update(step.get("aborted", []))
        if last := unknown.pop(step["replica"], None):
            gone.update(last["finished"])
        if asynchronous(experiment):
            unknown[step["replica"]] = step
        else:
            gone.update(step["finished"])
    return None


def tokens(experiment: Experiment, run: Run) -> Breach | None:
    """The steps compute a request's prompt, its output but for the last token, and the tokens that were lost.

    With asynchronous scheduling an answer that ends before its cap may be given one token more.
    """
    records, workload = run.records, experiment.workload
    requests, rows = records.requests, records.rows
    finished = requests.status == Status.FINISHED
    allowed = allowed_tokens(experiment, run)
    answer = np.minimum(workload.output_tokens, allowed)
    computed: Counter[str] = Counter()
    for step in run.decisions or []:
        computed.update(step["scheduled"])
    needed = requests.input_tokens + requests.output_tokens - 1 + requests.recomputed_tokens - requests.cached_tokens
    wasted = 0
    for row in np.flatnonzero(finished).tolist():
        name = records.request_id(row)
        if requests.output_tokens[row] != answer[row]:
            return Breach(
                f"request {name} got {requests.output_tokens[row]} output tokens, its answer has {answer[row]}"
            )
        more = computed[name] - int(needed[row])
        most = int(asynchronous(experiment) and answer[row] < allowed[row])
        if not 0 <= more <= most:
            return Breach(f"the steps computed {computed[name]} tokens of request {name}, which needed {needed[row]}")
        wasted += more
    aborted = np.flatnonzero(requests.status == Status.ABORTED)
    for row in aborted.tolist():
        name, told = records.request_id(row), int(requests.aborted_tokens[row])
        if computed[name] != told:
            return Breach(f"the steps computed {computed[name]} tokens of request {name}, aborted after {told}")
        if requests.output_tokens[row] > answer[row]:
            return Breach(f"request {name}, which was aborted, got more tokens than its answer has")
    real = int(((rows.tokens - rows.padded_tokens) * rows.repeat).sum())
    # A step may have given an aborted request one token too many, too.
    most = len(aborted) if asynchronous(experiment) else 0
    if not 0 <= sum(computed.values()) - wasted - real <= most:
        return Breach(f"the decisions name {sum(computed.values()) - wasted} tokens, the step rows {real}")
    odd = np.flatnonzero(rows.tokens != rows.decoding + rows.prefill_tokens + rows.padded_tokens)
    if len(odd):
        return Breach("a step's tokens are not those of its parts", int(rows.first_step[odd[0]]))
    return None


def allowed_tokens(experiment: Experiment, run: Run) -> NDArray[np.int64]:
    """`max_tokens` of each request, or less where the server allows less."""
    asked = experiment.workload.max_tokens
    caps = OptionalMembers.of(experiment.policy).caps
    if caps is None:
        return asked
    num_blocks, block_size = run.records.num_blocks, run.records.block_size
    seen = (RequestState(request, DecodeClock(block_size)) for request in experiment.workload.requests())
    most = np.array([caps(request, num_blocks, block_size) for request in seen], dtype=np.int64)
    return np.where(most >= 1, np.minimum(most, asked), asked)


def blocks(experiment: Experiment, run: Run) -> Breach | None:
    """Used blocks lie between none and all of them, and hold the tokens of the step's requests.

    That none leaks is checked while it runs (`scenarios.check.checking_blocks`).
    """
    records = run.records
    rows, used = records.rows, records.step_used_blocks
    wrong = np.flatnonzero((used < 0) | (used > records.num_blocks))
    if len(wrong):
        return Breach(f"{used[wrong[0]]} blocks are used, of {records.num_blocks}", int(wrong[0]))
    room = used[rows.first_step] * records.block_size
    # Held requests compute beyond what they keep.
    wrong = np.flatnonzero((rows.context_tokens > room) & (rows.held == 0))
    if len(wrong) and not records.requests.cached_tokens.any():
        row = wrong[0]
        what = f"{rows.context_tokens[row]} tokens in blocks for {room[row]}"
        return Breach(what, int(rows.first_step[row]), float(rows.start_s[row]))
    return None


def _names(records: Records, status: Status) -> set[str]:
    """The ids of the requests that ended so."""
    return {records.request_id(row) for row in np.flatnonzero(records.requests.status == status).tolist()}
