"""Law 6: jumping from change to change gives the very numbers that one event a step gives."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scenarios.check.laws import fast_forward
from tests.examples import examples
from tests.laws.scenarios import POLICIES, Scenario, scenarios

MANY = examples(500)
VERY_MANY = settings(max_examples=10_000)


def same_with_and_without(scenario: Scenario) -> None:
    stepwise = scenario.run(log_decisions=True, fast_forward=False)
    assert fast_forward(scenario, stepwise) is None


@pytest.mark.parametrize("name", POLICIES)
@given(data=st.data())
@MANY
def test_fast_forward_equals_stepwise(name: str, data: st.DataObject) -> None:
    same_with_and_without(data.draw(scenarios(name)))


@pytest.mark.slow
@pytest.mark.parametrize("name", POLICIES)
@given(data=st.data())
@VERY_MANY
def test_fast_forward_equals_stepwise_very_often(name: str, data: st.DataObject) -> None:
    same_with_and_without(data.draw(scenarios(name, max_requests=30)))
