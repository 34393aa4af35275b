"""Laws of traffic that answers back: nothing comes before its cause, nothing is lost, and both ways of time agree."""

from dataclasses import replace
from math import inf, isnan

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scenarios.check.laws import fast_forward, same
from simulator.results.records import CallColumns, Cause, Records, Status
from simulator.workload import Client, Workload
from tests.examples import examples
from tests.laws.answering import TOKENISING, Answering, answering
from tests.laws.scenarios import POLICIES, scenarios

SOME = examples(12)
MANY = settings(max_examples=600)


@pytest.mark.parametrize("name", POLICIES)
@given(data=st.data())
@SOME
def test_fast_forward_equals_stepwise(name: str, data: st.DataObject) -> None:
    case = data.draw(answering(name))
    same_with_and_without(replace(case, front_end=data.draw(st.sampled_from([case.front_end, TOKENISING]))))


@pytest.mark.slow
@pytest.mark.parametrize("name", POLICIES)
@given(data=st.data())
@MANY
def test_fast_forward_equals_stepwise_very_often(name: str, data: st.DataObject) -> None:
    case = data.draw(answering(name, max_requests=20))
    same_with_and_without(case)
    everything_holds(case)


def same_with_and_without(case: Answering) -> None:
    stepwise = case.run(log_decisions=True, fast_forward=False)
    assert fast_forward(case, stepwise) is None  # type: ignore[arg-type] # it runs
    fast = case.run()
    assert (fast.delays_s is None) == (stepwise.delays_s is None) == (not case.front_end)
    if fast.delays_s is not None and stepwise.delays_s is not None:
        assert fast.delays_s.tolist() == stepwise.delays_s.tolist()


@pytest.mark.parametrize("name", POLICIES)
@given(data=st.data())
@SOME
def test_causes_and_conservation(name: str, data: st.DataObject) -> None:
    everything_holds(data.draw(answering(name)))


def everything_holds(case: Answering) -> None:
    records = case.run().at_clients()
    if records.calls is None:  # no client of this run does anything but wait
        rows = np.arange(len(records.requests.row))
        records = replace(records, calls=CallColumns(np.ones_like(rows), rows, np.full(len(rows), np.nan)))
    arrivals_in_order(records)
    attempts_follow_failures(case, records)
    turns_follow_answers(case, records)
    loops_stay_within(case, records)


def arrivals_in_order(records: Records) -> None:
    assert np.all(np.diff(records.requests.arrival_s) >= 0)
    ids = records.request_ids
    assert ids is not None
    assert len(set(ids)) == len(ids)


def attempts_follow_failures(case: Answering, records: Records) -> None:
    """A request's attempts are numbered, each comes its backoff after a failure, and none follows a success."""
    requests, calls = records.requests, records.calls
    assert calls is not None
    for first in np.unique(calls.first_row).tolist():
        rows = np.flatnonzero(calls.first_row == first)
        assert rows[0] == first
        assert calls.attempt[rows].tolist() == list(range(1, len(rows) + 1))
        client = client_of(case.workload, int(requests.class_index[first]))
        assert len(rows) <= client.max_attempts
        for row, later in zip(rows.tolist(), [*rows[1:].tolist(), None], strict=True):
            failed_s = failure_s(case, records, row)
            if later is None:
                full = records.reject_reasons.get(row, "").startswith(Cause.QUEUE_FULL.value)
                may = not isnan(calls.left_s[row]) or full
                assert not may or len(rows) == client.max_attempts
            else:
                assert failed_s is not None
                wait_s = requests.arrival_s[later] - failed_s
                most = min(client.backoff_s * client.backoff_factor ** (calls.attempt[row] - 1), client.max_backoff_s)
                assert most * (1 - client.jitter) - 1e-9 <= wait_s <= most + 1e-9


def client_of(workload: Workload, index: int) -> Client:
    return workload.clients[index] if workload.clients else Client()


def failure_s(case: Answering, records: Records, row: int) -> float | None:
    """When the client of a request knew that it had failed; None if it was answered."""
    requests, calls = records.requests, records.calls
    assert calls is not None
    client = client_of(case.workload, int(requests.class_index[row]))
    status, arrival_s = requests.status[row], float(requests.arrival_s[row])
    left_s = float(calls.left_s[row])
    if not isnan(left_s):
        assert status in (Status.ABORTED, Status.REJECTED)
        waited_s = left_s - arrival_s
        assert min(abs(waited_s - limit) for limit in (client.timeout_s, client.ttft_timeout_s)) < 1e-9
        return left_s
    if status == Status.REJECTED:
        return arrival_s + case.front_end.fixed_s
    assert status == Status.FINISHED
    seen_s = float(requests.last_token_s[row])
    assert seen_s - arrival_s <= client.timeout_s + 1e-9
    assert float(requests.first_token_s[row]) - arrival_s <= client.ttft_timeout_s + 1e-9 or (
        client.ttft_timeout_s == inf
    )
    return None


def served_s(case: Answering, records: Records) -> dict[str, float]:
    """When the clients had the answers, by name of the request."""
    requests, ids = records.requests, records.request_ids
    assert ids is not None
    return {
        ids[row].partition("#")[0]: float(requests.last_token_s[row])
        for row in np.flatnonzero(requests.status == Status.FINISHED).tolist()
    }


def turns_follow_answers(case: Answering, records: Records) -> None:
    """What follows answers comes exactly its delay after the last, and comes at all if and only if there are all."""
    workload, requests, calls = case.workload, records.requests, records.calls
    assert records.request_ids is not None
    assert calls is not None
    served = served_s(case, records)
    rows = {name: row for row, name in enumerate(records.request_ids)}
    assert workload.after_row is not None
    assert workload.delay_s is not None
    for there, before in enumerate(workload.after_row.tolist()):
        if before < 0:
            due_s = float(workload.arrival_s[there])
        else:
            waits = (before, *(() if workload.also_after is None else workload.also_after[there]))
            due_s = max(served.get(str(each), inf) for each in waits) + float(workload.delay_s[there])
        if due_s < workload.until_s:
            assert float(requests.arrival_s[rows[str(there)]]) == pytest.approx(due_s, abs=1e-12)
        else:
            assert str(there) not in rows


def loops_stay_within(case: Answering, records: Records) -> None:
    """A closed loop's users have one request each at a time, and take from the pool in order."""
    requests, ids, calls = records.requests, records.request_ids, records.calls
    assert ids is not None
    assert calls is not None
    for loop in case.workload.loops:
        mine = [row for row, name in enumerate(ids) if name.startswith("loop-") and "#" not in name]
        issued = sorted(int(ids[row].removeprefix("loop-")) for row in mine)
        pool = loop.draw(len(mine) + loop.concurrency)
        assert pool.after_row is not None
        firsts = [number for number in issued if pool.after_row[number] < 0]
        if case.workload.until_s == inf:  # else a user may have taken one, and thought for too long
            assert firsts == np.flatnonzero(pool.after_row < 0).tolist()[: len(firsts)]
        if loop.requests is not None and case.workload.until_s == inf:
            assert len(firsts) >= min(loop.concurrency, int((pool.after_row[: loop.requests] < 0).sum()))
        begins = requests.arrival_s[mine]
        ends = np.array([until_s(case, records, row) for row in mine])
        for at_s in begins.tolist():
            assert np.count_nonzero((begins <= at_s) & (ends > at_s)) <= loop.concurrency


def until_s(case: Answering, records: Records, first: int) -> float:
    """When the last attempt at a request was over for its client."""
    calls = records.calls
    assert calls is not None
    last = int(np.flatnonzero(calls.first_row == first)[-1])
    failed_s = failure_s(case, records, last)
    return float(records.requests.last_token_s[last]) if failed_s is None else failed_s


@pytest.mark.parametrize("name", POLICIES)
@given(data=st.data())
@SOME
def test_clients_that_never_lose_patience_change_nothing(name: str, data: st.DataObject) -> None:
    """What answers back, but has no reason to, is what arrives of itself, to the last bit."""
    scenario = data.draw(scenarios(name))
    patient = replace(scenario.workload, clients=(Client(timeout_s=1e9, max_attempts=3),))
    fast = data.draw(st.booleans())
    plain = scenario.run(log_decisions=True, fast_forward=fast)
    answered = Answering(scenario.on(patient)).run(log_decisions=True, fast_forward=fast)
    without = replace(answered, records=replace(answered.records, calls=None))
    assert same(plain, without, (" without clients", " with patient ones")) is None
    assert answered.records.calls is not None
    assert np.all(answered.records.calls.attempt == 1)


@given(data=st.data())
@SOME
def test_the_same_again_gives_the_same(data: st.DataObject) -> None:
    case = data.draw(answering("vllm"))
    assert same(case.run(log_decisions=True), case.run(log_decisions=True), (" at first", " again")) is None
