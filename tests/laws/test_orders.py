"""The laws for every policy that takes a queue order, with every order."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scenarios.check.law_trial import differences
from simulator.results.records import Status
from tests.examples import examples
from tests.laws.orders import ORDERED, ORDERS, ordered_scenarios, slower
from tests.laws.scenarios import scaled
from tests.laws.test_fast_forward import same_with_and_without
from tests.laws.test_naive_engine import dealt_in_turn, in_step, same_story
from tests.laws.test_purity import asked_twice
from tests.laws.test_scaling import times

# Each order under some policies and each policy with some orders; all pairs in `make long-tests`.
every_pair = pytest.mark.parametrize(
    ("policy", "order"),
    [
        pytest.param(policy, order, marks=() if (i + j) % len(ORDERS) in (0, 3) else pytest.mark.long)
        for i, policy in enumerate(ORDERED)
        for j, order in enumerate(ORDERS)
    ],
)
every_policy = pytest.mark.parametrize("policy", ORDERED)


@every_pair
@given(data=st.data())
@examples(120)
def test_fast_forward_equals_stepwise(policy: str, order: str, data: st.DataObject) -> None:
    same_with_and_without(data.draw(ordered_scenarios(policy, order)))


@pytest.mark.slow
@every_pair
@given(data=st.data())
@settings(max_examples=5_000)
def test_fast_forward_equals_stepwise_very_often(policy: str, order: str, data: st.DataObject) -> None:
    same_with_and_without(data.draw(ordered_scenarios(policy, order, max_requests=30)))


@every_pair
@given(data=st.data())
@examples(60)
def test_the_naive_engine_tells_the_same_story(policy: str, order: str, data: st.DataObject) -> None:
    same_story(dealt_in_turn(data.draw(ordered_scenarios(policy, order))))


@every_pair
@given(data=st.data())
@examples(30)
def test_arrivals_at_the_ends_of_steps(policy: str, order: str, data: st.DataObject) -> None:
    scenario = data.draw(in_step(dealt_in_turn(data.draw(ordered_scenarios(policy, order)))))
    same_story(scenario)
    same_story(scenario, fast_forward=False)


@pytest.mark.slow
@every_pair
@given(data=st.data())
@settings(max_examples=1_000)
def test_the_naive_engine_tells_the_same_story_very_often(policy: str, order: str, data: st.DataObject) -> None:
    same_story(dealt_in_turn(data.draw(ordered_scenarios(policy, order, max_requests=25))))


@every_pair
@given(data=st.data())
@examples(20)
def test_planning_is_pure(policy: str, order: str, data: st.DataObject) -> None:
    """Looking at the queue changes nothing, whatever the order remembers."""
    asked_twice(data.draw(ordered_scenarios(policy, order, max_requests=8)))


@every_pair
@given(data=st.data())
@examples(20)
def test_everybody_is_served(policy: str, order: str, data: st.DataObject) -> None:
    """A trace ends, so nobody starves for ever; all tokens come, once."""
    scenario = data.draw(ordered_scenarios(policy, order))
    requests = scenario.run().records.requests
    assert set(requests.status.tolist()) <= {Status.FINISHED, Status.REJECTED}
    done = requests.status == Status.FINISHED
    assert (requests.output_tokens[done] == scenario.workload.output_tokens[done]).all()


@every_pair
@given(data=st.data())
@examples(20)
def test_twice_the_time(policy: str, order: str, data: st.DataObject) -> None:
    scenario = data.draw(ordered_scenarios(policy, order))
    slow = scaled(scenario, 2.0)
    chosen: Any = slow.policy
    assert slow.workload.deadline_s is not None
    workload = replace(slow.workload, deadline_s=slow.workload.deadline_s * 2.0)
    slow = replace(slow, workload=workload, policy=replace(chosen, order=slower(chosen.order, 2.0)))
    assert differences(times(scenario.run().records, 2.0), slow.run().records) == []


@every_policy
@given(data=st.data())
@examples(30)
def test_one_class_is_first_come_first_served_where_nobody_is_preempted(policy: str, data: st.DataObject) -> None:
    """Classes are all that fair and vtc know; equal lengths and deadlines leave sjf and edf nothing but arrivals."""
    scenario = data.draw(ordered_scenarios(policy, "sjf"))
    count = len(scenario.workload)
    alike = replace(
        scenario.workload,
        class_index=np.zeros(count, dtype=np.int64),
        predicted_output_tokens=np.full(count, 7),
        deadline_s=np.full(count, 0.5),
        priority=np.zeros(count, dtype=np.int64),
    )
    ample = replace(scenario, workload=alike, memory=replace(scenario.memory, num_gpu_blocks=10_000))
    chosen: Any = ample.policy
    first = replace(ample, policy=replace(chosen, order="fcfs")).run(log_decisions=True)
    for order in ("priority", "sjf", "edf", "fair", "vtc"):
        assert replace(ample, policy=replace(chosen, order=order)).run(log_decisions=True).decisions == first.decisions
