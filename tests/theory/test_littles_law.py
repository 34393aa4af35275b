"""Law 10: Little's law, exactly, on what was recorded: steps on one side, requests on the other."""

from itertools import zip_longest

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.metrics.series import StepFunction, queue_depth, running
from simulator.metrics.summary import summarize
from simulator.results.records import Floats, Records, Status
from tests.examples import examples
from tests.laws.scenarios import OVERLAPPING, POLICIES, Scenario, scenarios

IN_TURN = [name for name in POLICIES if name not in OVERLAPPING]


def integral(series: StepFunction) -> float:
    """Of a step function, from its first step to its end."""
    return float(np.dot(series.value, np.diff(series.time_s, append=series.end_s)))


def in_the_batch_s(records: Records) -> Floats:
    """What each request spent with a slot."""
    requests = records.requests
    return np.asarray(requests.released_s - requests.scheduled_s - requests.requeued_s)


def pauses(scenario: Scenario) -> bool:
    """Whether requests may be in the batch, with their memory, and have no slot."""
    return getattr(scenario.policy, "preemption_mode", None) == "pause"


@pytest.mark.parametrize("name", IN_TURN)
@given(data=st.data())
@examples(60)
def test_slots(name: str, data: st.DataObject) -> None:
    """Slots in use over time, from the steps = time in the batch, from the requests."""
    scenario = data.draw(scenarios(name))
    records = scenario.run().records
    rows = records.rows
    if pauses(scenario):
        assert integral(running(records)) <= float(np.nansum(in_the_batch_s(records))) * (1 + 1e-9)
        return
    expected = pytest.approx(float(np.nansum(in_the_batch_s(records))), rel=1e-9)
    assert integral(running(records)) == expected
    assert float(np.dot(rows.running, rows.end_s - rows.start_s)) == expected


@pytest.mark.parametrize("name", IN_TURN)
@given(data=st.data())
@examples(60)
def test_the_queue(name: str, data: st.DataObject) -> None:
    """Queue depth over time = first waits and waits after preemptions, from the requests and from the decisions."""
    run = data.draw(scenarios(name)).run(log_decisions=True)
    records = run.records
    requests = records.requests
    waited = float(np.nansum(requests.scheduled_s - requests.arrival_s) + requests.requeued_s.sum())
    assert integral(queue_depth(records)) == pytest.approx(waited, rel=1e-9, abs=1e-12)
    assert run.decisions is not None
    logged = sum(len(step["waiting"]) * (step["t_end_s"] - step["t_start_s"]) for step in run.decisions)
    # The log looks when a step begins: those who come during one, and wait while a static batch forms, are not in it.
    done = np.flatnonzero(requests.status == Status.FINISHED)
    unseen = sum(unlogged_s(records, row) for row in done.tolist())
    assert logged + unseen == pytest.approx(waited, rel=1e-9, abs=1e-12)


def unlogged_s(records: Records, row: int) -> float:
    """What a request waits until the first step that begins after its arrival, and between steps before it is in."""
    requests, rows = records.requests, records.rows
    arrival_s, scheduled_s = float(requests.arrival_s[row]), float(requests.scheduled_s[row])
    mine = np.repeat(rows.replica == requests.replica[row], rows.repeat)
    ends = records.step_end_s[mine]
    starts = step_starts(records)[mine]
    seen = (starts >= arrival_s) & (starts < scheduled_s)
    return scheduled_s - arrival_s - float((ends - starts)[seen].sum())


def step_starts(records: Records) -> Floats:
    rows = records.rows
    starts = np.append(0.0, records.step_end_s)[:-1]
    starts[rows.first_step] = rows.start_s
    return starts


@pytest.mark.parametrize("name", OVERLAPPING)
@given(data=st.data())
@examples(120)
def test_planned_ahead(name: str, data: st.DataObject) -> None:
    """A plan made while the step before runs holds until its own step begins: slots and queue by the times of plans.

    The rows count by the times of steps, each of which begins up to a step later.
    """
    run = data.draw(scenarios(name)).run(log_decisions=True)
    records = run.records
    requests, rows = records.requests, records.rows
    assert run.decisions is not None
    held = waiting = 0.0
    for index in range(records.replicas):
        steps = [step for step in run.decisions if step["replica"] == index]
        for step, following in zip_longest(steps, steps[1:]):
            lasts_s = step["t_start_s"] - step["t_schedule_s"]
            held += len(step["running"]) * lasts_s
            waiting += len(step["waiting"]) * lasts_s
            if following is None or following["t_schedule_s"] >= step["t_end_s"]:
                # SGLang's plan of nothing is no step: it waits for the results of this one.
                lasts_s = step["t_end_s"] - step["t_start_s"]
                held += sum(requests.released_s[int(row)] > step["t_start_s"] for row in step["running"]) * lasts_s
                waiting += len(step["waiting"]) * lasts_s
    in_batch_s = float(np.nansum(in_the_batch_s(records)))
    assert held == pytest.approx(in_batch_s, rel=1e-9, abs=1e-12)
    waited = float(np.nansum(requests.scheduled_s - requests.arrival_s) + requests.requeued_s.sum())
    done = np.flatnonzero(requests.status == Status.FINISHED).tolist()
    plans = [[s["t_schedule_s"] for s in run.decisions if s["replica"] == index] for index in range(records.replicas)]
    unseen = 0.0
    for row in done:
        arrival_s = float(requests.arrival_s[row])
        mine = plans[int(requests.replica[row])]
        unseen += min(planned_s for planned_s in mine if planned_s >= arrival_s) - arrival_s
    assert waiting + unseen == pytest.approx(waited, rel=1e-9, abs=1e-12)
    if len(rows.start_s):
        moves = 2 * len(done) + 2 * int(requests.preemptions.sum())
        longest_s = float(np.max(records.step_end_s - step_starts(records)))
        assert abs(float(np.dot(rows.running, rows.end_s - rows.start_s)) - in_batch_s) <= moves * longest_s + 1e-9


@pytest.mark.parametrize("name", IN_TURN)
@given(data=st.data())
@examples(60)
def test_the_whole_system(name: str, data: st.DataObject) -> None:
    """L = lambda W with the numbers of the summary: depth and slots over time, requests a second, mean times."""
    scenario = data.draw(scenarios(name))
    records = scenario.run().records
    summary = summarize(records)
    finished, duration = summary["completed"], summary["duration"]
    if not finished:
        return
    assert finished is not None
    assert duration is not None
    requests = records.requests
    requeued_s = float(requests.requeued_s.sum())
    mean_queue_s = (float(summary["mean_queue_time_ms"] or 0) / 1e3 * finished + requeued_s) / finished
    assert summary["queue_depth_mean"] == pytest.approx(finished / duration * mean_queue_s, rel=1e-9, abs=1e-12)
    slots = scenario.policy.max_num_seqs * records.replicas
    mean_slot_s = float(np.nanmean(in_the_batch_s(records)))
    occupied = pytest.approx(finished / duration * mean_slot_s, rel=1e-9)
    assert pauses(scenario) or float(summary["batch_occupancy"] or 0) * slots == occupied
    if name != "static":
        mean_system_s = float(summary["mean_e2el_ms"] or 0) / 1e3
        assert mean_queue_s + mean_slot_s == pytest.approx(mean_system_s, rel=1e-9)
