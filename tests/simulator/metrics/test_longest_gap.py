"""The longest gap of each request, against engines and stories that keep the time of every token."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.metrics.longest_gap import longest_gap_s
from simulator.results.records import Floats, Records, Status
from tests.laws.naive_engine import serve
from tests.laws.scenarios import POLICIES, Scenario, scenarios
from tests.laws.test_naive_engine import dealt_in_turn, wild_scenarios


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
    known = ~np.isnan(gaps)
    assert (found[known] >= gaps[known] - 1e-9).all()
    requests = records.requests
    certain = known & (requests.preemptions == 0)
    if exact:
        np.testing.assert_allclose(found[certain], gaps[certain], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", POLICIES)
@given(data=st.data())
@settings(max_examples=40)
def test_built_in_policies(name: str, data: st.DataObject) -> None:
    records, gaps = told(dealt_in_turn(data.draw(scenarios(name))))
    rows = records.rows
    paused = (rows.running > rows.decoding + rows.prefilling + rows.held).any()
    check(records, gaps, exact=not paused)


@given(scenario=wild_scenarios())
@settings(max_examples=150)
def test_a_wild_policy(scenario: Scenario) -> None:
    records, gaps = told(scenario)
    check(records, gaps, exact=False)


@given(data=st.data(), front_end_s=st.sampled_from([0.001, 0.5, 10.0]))
@settings(max_examples=20)
def test_what_lies_before_the_engine_adds_to_no_gap(data: st.DataObject, front_end_s: float) -> None:
    records, gaps = told(dealt_in_turn(data.draw(scenarios("chunked_prefill"))))
    requests = replace(
        records.requests,
        first_token_s=records.requests.first_token_s + front_end_s,
        last_token_s=records.requests.last_token_s + front_end_s,
    )
    check(replace(records, requests=requests, front_end_s=front_end_s), gaps, exact=True)


def test_some_are_exact_though_preempted() -> None:
    """Of the requests that were preempted once and recomputed, nearly all are found to the last bit."""
    once = same = 0

    @given(data=st.data())
    @settings(max_examples=150, database=None, derandomize=True)
    def over(data: st.DataObject) -> None:
        nonlocal once, same
        records, gaps = told(dealt_in_turn(data.draw(scenarios("chunked_prefill"))))
        those = (records.requests.preemptions == 1) & (records.requests.status == Status.FINISHED) & ~np.isnan(gaps)
        once += int(those.sum())
        same += int(np.isclose(longest_gap_s(records)[those], gaps[those], rtol=1e-12).sum())

    over()
    assert once >= 20
    assert same >= 0.95 * once
