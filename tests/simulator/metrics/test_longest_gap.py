"""The longest gap of each request, against engines and stories that keep the time of every token."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.metrics.latency import longest_gap_s
from simulator.policies.preemptive import Preemptive
from simulator.results.records import Floats, Records
from simulator.simulate import Run
from simulator.timing.formula_cost import Linear
from simulator.workload import Workload
from tests.columns import as_floats, as_ints
from tests.examples import examples
from tests.laws.naive_engine import serve
from tests.laws.scenarios import POLICIES, Memory, Scenario, scenarios
from tests.laws.test_naive_engine import dealt_in_turn, wild_scenarios
from tests.simulator.metrics.short_of_memory import short_of_memory


def told(scenario: Scenario) -> tuple[Records, Floats]:
    """The engine's records, and the longest gaps by the naive engine."""
    records = scenario.run().records
    gaps = np.full(len(records.requests.row), np.nan)
    for replica in serve(scenario):
        for request in replica.requests:
            if request.state == "finished" and len(request.token_s) > 1 and records.streams:
                gaps[request.row] = np.diff(request.token_s).max()
    return records, gaps


def check(records: Records, gaps: Floats, *, exact: bool) -> None:
    found = longest_gap_s(records)
    np.testing.assert_array_equal(np.isnan(found), np.isnan(gaps))
    never = records.requests.preemptions == 0
    bounded = ~np.isnan(gaps) & (never | exact)
    assert (found[bounded] >= gaps[bounded] - 1e-9).all()
    if exact:
        certain = bounded & never
        np.testing.assert_allclose(found[certain], gaps[certain], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", POLICIES)
@given(data=st.data())
@examples(20)
def test_built_in_policies(name: str, data: st.DataObject) -> None:
    scenario = dealt_in_turn(data.draw(scenarios(name)))
    records, gaps = told(scenario)
    rows = records.rows
    paused = (rows.running > rows.decoding + rows.prefilling + rows.held).any()
    pauses = getattr(scenario.policy, "preemption_mode", None) == "pause"
    check(records, gaps, exact=not (paused or pauses))


def test_a_paused_request_holds_no_slot() -> None:
    zeros = np.zeros(8, dtype=np.int64)
    arrival_s = as_floats([0, 0, 0, 0.001, 0.001, 0.001, 0.001, 0.001])
    lengths, caps = as_ints([1, 2, 2, 1, 1, 1, 1, 3]), as_ints([3] * 8)
    inputs, priority = as_ints([1, 1, 1, 1, 1, 1, 1, 2]), as_ints([0, 0, 1, 0, 0, 0, 0, 0])
    workload = Workload(arrival_s, inputs, lengths, caps, priority, zeros, ("default",))
    policy = Preemptive(max_num_seqs=3, max_num_batched_tokens=4, preemption_mode="pause")
    records, gaps = told(Scenario(workload, policy, Memory(6, 1, 0), Linear(0.005), 0.0, False, 1, "round_robin"))
    check(records, gaps, exact=False)
    assert longest_gap_s(records)[2] == pytest.approx(0.015)


@given(scenario=wild_scenarios())
@examples(100)
def test_a_wild_policy(scenario: Scenario) -> None:
    records, gaps = told(scenario)
    check(records, gaps, exact=False)


@given(data=st.data(), front_end_s=st.sampled_from([0.001, 0.5, 10.0]))
@examples(20)
def test_what_lies_before_the_engine_adds_to_no_gap(data: st.DataObject, front_end_s: float) -> None:
    records, gaps = told(dealt_in_turn(data.draw(scenarios("chunked_prefill"))))
    delays_s = as_floats(front_end_s * (1.0 + np.arange(len(records.requests.row)) % 3))
    check(Run(records, None, delays_s).at_clients(), gaps, exact=True)


def test_a_request_that_was_preempted_once_is_exact() -> None:
    """Where no request is paused, and decodes go on beside the prefill that computes a victim again."""
    records, gaps = told(short_of_memory())
    once = (records.requests.preemptions == 1) & ~np.isnan(gaps)
    assert once.sum() >= 5
    assert (records.requests.preemptions > 1).any()
    np.testing.assert_allclose(longest_gap_s(records)[once], gaps[once], rtol=1e-12)
    check(records, gaps, exact=True)
