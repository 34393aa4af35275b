"""Laws of gateways: no request is lost or served twice, whoever sheds, retries, leaves or waits for others."""

from collections import defaultdict
from dataclasses import replace
from math import inf, isnan

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from scenarios.check.law_trial import differences
from simulator.fleet.gateway import DISPATCH_S, FlowControl
from simulator.front_end import NO_FRONT_END, FrontEnd
from simulator.results.records import Floats, Passage, Records, Status
from tests.examples import examples
from tests.laws.gateways import Gated, gated

Queued = dict[int, tuple[float, float, int]]
"""By row: from when to when it was at the gateway, and how it left."""


FRONT_ENDS = st.sampled_from([NO_FRONT_END, FrontEnd(0.002, 0.0, 0.0007)])


@given(gate=gated(), front_end=FRONT_ENDS)
@examples(120)
def test_fast_forward_equals_stepwise(gate: Gated, front_end: FrontEnd) -> None:
    gate = replace(gate, front_end=front_end)
    one, two = gate.run(), gate.run(fast_forward=False)
    assert differences(one.records, two.records) == []
    assert one.decisions == two.decisions


@given(
    gate=gated(flow_control=FlowControl(queue_depth_threshold=10**9, kv_cache_util_threshold=10**9, ttl_s=60.0)),
    front_end=FRONT_ENDS,
)
@examples(120)
def test_a_gateway_that_never_holds_back_changes_nothing(gate: Gated, front_end: FrontEnd) -> None:
    gate = replace(gate, front_end=front_end)
    held, free = gate.run(), replace(gate, flow_control=None).run()
    assert differences(replace(held.records, passages=None), free.records) == []
    assert held.decisions == free.decisions


@given(gate=gated())
@examples(600)
def test_no_request_is_lost_or_served_twice(gate: Gated) -> None:
    """Every attempt has one end. Another follows for a reason alone; what waits for others comes after all of them."""
    records = gate.run().records
    requests, queued = records.requests, queue_times(records)
    assert set(queued) == set(requests.row.tolist())
    assert np.isin(requests.status, (Status.FINISHED, Status.REJECTED, Status.ABORTED)).all()
    attempts: dict[int, list[int]] = defaultdict(list)
    for row in requests.row.tolist():
        attempts[int(records.request_id(row).split("#")[0])].append(row)
        went = queued[row][2] == Passage.DISPATCHED
        assert went or requests.replica[row] == -1
        if went and not isnan(requests.scheduled_s[row]):
            assert requests.scheduled_s[row] >= queued[row][1]
        if requests.status[row] == Status.FINISHED:
            assert went
    left_s = np.full(len(requests.row), np.nan) if records.calls is None else records.calls.left_s
    done_s = {source: retried(gate, records, rows, left_s, queued) for source, rows in attempts.items()}
    waits = gate.waits_for
    for source in range(len(gate.workload)):
        ends_s = [done_s.get(other, inf) for other in waits[source]]
        comes_s = float(gate.workload.arrival_s[source])
        if ends_s:
            assert gate.workload.delay_s is not None
            comes_s = max(ends_s) + float(gate.workload.delay_s[source])
        assert (source in attempts) == (comes_s < inf), f"request {source} is lost, or came for nothing"
        if source in attempts:
            assert requests.arrival_s[attempts[source][0]] == comes_s


def retried(gate: Gated, records: Records, rows: list[int], left_s: Floats, queued: Queued) -> float:
    """When a request was answered, after its attempts, each for a reason; infinity where it never was."""
    requests, workload = records.requests, gate.workload
    client = workload.clients[workload.class_index[int(records.request_id(rows[0]))]] if workload.clients else None
    most = 1 if client is None else client.max_attempts
    assert [records.request_id(row) for row in rows[1:]] == [
        f"{records.request_id(rows[0])}#{number}" for number in range(2, len(rows) + 1)
    ]
    for row, later in zip(rows, [*rows[1:], None], strict=True):
        served = requests.status[row] == Status.FINISHED and isnan(left_s[row])
        if later is not None:
            assert not served, f"request {row} was answered, and came again"
            gone_s = queued[row][1] if isnan(left_s[row]) else left_s[row]
            assert requests.arrival_s[later] >= gone_s, f"request {row} came again before it had failed"
        else:
            reason = records.reject_reasons.get(row, "")
            hopeless = requests.status[row] == Status.REJECTED and not reason.startswith(("the queue", "it waited"))
            assert served or hopeless or len(rows) == most, f"request {row} has attempts left"
    last = rows[-1]
    served = requests.status[last] == Status.FINISHED and isnan(left_s[last])
    return float(requests.last_token_s[last]) if served else inf


@given(gate=gated())
@examples(600)
def test_the_queue_is_what_it_says(gate: Gated) -> None:
    """Its limits, its order, its pace, and that nothing less important passes."""
    records, control = gate.run().records, gate.flow_control
    assert control is not None
    requests, queued = records.requests, queue_times(records)
    classes, priorities = requests.class_index, requests.priority
    sources = [int(records.request_id(row).split("#")[0]) for row in requests.row.tolist()]
    assert gate.workload.deadline_s is not None
    deadlines = np.nan_to_num(gate.workload.deadline_s[sources], nan=inf) + requests.arrival_s
    begun: dict[float, int] = defaultdict(int)
    for row, (came_s, gone_s, passage) in queued.items():
        others = [(other, *times) for other, times in queued.items() if other != row]
        assert came_s <= gone_s <= came_s + control.ttl_s + 1e-12
        if passage == Passage.EXPIRED:
            assert gone_s >= came_s + control.ttl_s - 1e-12
        if passage == Passage.SHED:
            here = [other for other, came, gone, how in others if came <= came_s <= gone and how != Passage.SHED]
            alike = [other for other in here if priorities[other] == priorities[row]]
            assert len(here) >= (control.max_requests or inf) or len(alike) >= (
                control.max_requests_per_priority or inf
            )
        if passage != Passage.DISPATCHED:
            continue
        begun[gone_s] += 1
        for other, came, gone, how in others:
            if how == Passage.SHED or not came < gone_s < gone:
                continue
            assert priorities[other] >= priorities[row], f"{other} is more important than {row}"
            if (priorities[other], classes[other]) == (priorities[row], classes[row]):
                key = requests.arrival_s if control.ordering == "fcfs" else deadlines
                assert key[other] >= key[row]
    arrivals = requests.arrival_s.tolist()
    for at_s, many in begun.items():
        ticks = at_s / DISPATCH_S
        assert many <= arrivals.count(at_s) + (abs(ticks - round(ticks)) < 1e-6)


@given(gate=gated(), most=st.integers(1, 3))
@examples(120)
def test_no_more_are_in_flight_than_the_detector_allows(gate: Gated, most: int) -> None:
    control = FlowControl(detector="concurrency", max_concurrency=most)
    fixed = [replace(group, autoscaling=None, replicas=group.initial_replicas) if group.autoscaling else group
             for group in gate.groups]  # fmt: skip
    records = replace(gate, groups=fixed, flow_control=control).run().records
    requests, sent = records.requests, queue_times(records)
    halves = 2 if any(group.role != "both" for group in fixed) else 1  # each half counts, where it is
    for row, (_, gone_s, passage) in sent.items():
        if passage == Passage.DISPATCHED:
            here = [
                other
                for other, (_, went_s, how) in sent.items()
                if how == Passage.DISPATCHED and went_s < gone_s and not requests.released_s[other] <= gone_s
            ]
            rejected = np.isnan(requests.released_s[here]).sum()  # at once, where it was sent
            assert len(here) - rejected < most * sum(group.replicas for group in fixed) * halves, f"at {gone_s}: {row}"


def queue_times(records: Records) -> Queued:
    """The times at the gateway. Each request passes it once."""
    passages = records.passages
    assert passages is not None
    assert len(set(passages.row.tolist())) == len(passages.row)
    columns = passages.row.tolist(), passages.wait_s.tolist(), passages.passage.tolist()
    arrival_s = records.requests.arrival_s
    return {
        row: (arrival_s.item(row), arrival_s.item(row) + wait_s, how) for row, wait_s, how in zip(*columns, strict=True)
    }
