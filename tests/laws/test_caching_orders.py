"""The laws with a prefix cache and a queue order that is not fcfs, together: who comes first decides what is cached."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scenarios.check.law_trial import differences
from simulator.results.records import Status
from tests.examples import examples
from tests.laws.caching import groups, hashes, mixed, run_cached, token_ids, with_contents
from tests.laws.orders import ORDERS, ordered_scenarios
from tests.laws.scenarios import Scenario
from tests.laws.test_caching import run_checked, same_with_and_without
from tests.laws.test_caching_purity import watched

every_order = pytest.mark.parametrize("order", ORDERS)


@st.composite
def ordered_and_cached(draw: st.DrawFn, order: str, *, max_requests: int = 12) -> Scenario:
    """A scenario for `chunked_prefill` in this order, whose requests share content."""
    scenario = draw(ordered_scenarios("chunked_prefill", order, max_requests=max_requests))
    make = draw(st.sampled_from([groups, hashes, token_ids, mixed]))
    rng = random.Random(draw(st.integers(0, 2**32)))
    return with_contents(scenario, make(rng, scenario.workload, scenario.memory.block_size))


@every_order
@given(data=st.data())
@examples(100)
def test_fast_forward_equals_stepwise(order: str, data: st.DataObject) -> None:
    same_with_and_without(data.draw(ordered_and_cached(order)))


@every_order
@given(data=st.data())
@examples(30)
def test_blocks_are_conserved_and_everybody_is_served(order: str, data: st.DataObject) -> None:
    scenario = data.draw(ordered_and_cached(order))
    run_checked(scenario)
    assert (run_cached(scenario).records.requests.status != Status.UNFINISHED).all()


@every_order
@given(data=st.data())
@examples(20)
def test_planning_is_pure(order: str, data: st.DataObject) -> None:
    watched(data.draw(ordered_and_cached(order, max_requests=8)))


@every_order
@given(data=st.data())
@examples(20)
def test_equal_inputs_give_equal_runs(order: str, data: st.DataObject) -> None:
    scenario = data.draw(ordered_and_cached(order))
    one, other = run_cached(scenario), run_cached(scenario)
    assert differences(one.records, other.records) == []
    assert one.decisions == other.decisions
