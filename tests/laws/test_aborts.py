"""Aborts at any moment, in any state: nothing is lost, and fast-forward equals stepwise."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scenarios.check.laws.repetition import same
from tests.laws.reacting import Script, scripts
from tests.laws.scenarios import POLICIES, Scenario, scenarios

MANY = settings(max_examples=100)


def same_with_and_without(scenario: Scenario, script: Script) -> None:
    stepwise, told = script.run(scenario, fast_forward=False)
    fast, also_told = script.run(scenario)
    assert told == also_told
    assert same(stepwise, fast, (" step by step", " with fast-forward")) is None


@pytest.mark.parametrize("name", POLICIES)
@given(data=st.data())
@MANY
def test_fast_forward_equals_stepwise_with_aborts(name: str, data: st.DataObject) -> None:
    scenario = data.draw(scenarios(name))
    same_with_and_without(scenario, data.draw(scripts(scenario)))
