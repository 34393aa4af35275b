"""A cost that asks how unequal contexts are is told so by the engine as by a walk over the batch, in every policy."""

from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scenarios.check.law_trial import differences
from simulator.timing.cost import StepShape
from simulator.timing.formula_cost import Linear
from simulator.timing.profile import ProfileCost
from tests.examples import examples
from tests.laws.scenarios import OVERLAPPING, POLICIES, scenarios
from tests.laws.test_naive_engine import same_story
from tests.profile_maker import apart, profile

MANY = examples(60)


@dataclass(frozen=True, slots=True)
class Uneven:
    """Every count of a step shows in its time."""

    wants_context_stats = True
    base: Linear
    told: list[StepShape] = field(default_factory=list, compare=False)

    def step_s(self, shape: StepShape) -> float:
        longest = 1e-6 * shape.decode_longest + 1e-6 * shape.prefill_longest + 1e-9 * shape.prefill_pairs
        return self.base.step_s(shape) + longest + 1e-12 * shape.decode_squares

    def decode_run_s(self, shape: StepShape, repeat: int) -> list[float]:
        return [self.step_s(shape.later(step)) for step in range(repeat)]


@pytest.mark.parametrize("name", [name for name in POLICIES if name not in OVERLAPPING])
@given(data=st.data())
@MANY
def test_the_engine_tells_what_a_walk_over_the_batch_finds(name: str, data: st.DataObject) -> None:
    scenario = data.draw(scenarios(name))
    same_story(replace(scenario, cost=Uneven(scenario.cost), router="round_robin"))  # type: ignore[arg-type] # any cost


@pytest.mark.parametrize("name", POLICIES)
@pytest.mark.parametrize("attention", ["joint", "apart"])
@given(data=st.data())
@examples(20)
def test_fast_forward_with_a_profile_equals_stepwise(attention: str, name: str, data: st.DataObject) -> None:
    made = profile() if attention == "joint" else profile(attention=apart())
    scenario = replace(data.draw(scenarios(name)), cost=ProfileCost(made))  # type: ignore[arg-type] # any cost model
    fast, stepwise = scenario.run(log_decisions=True), scenario.run(log_decisions=True, fast_forward=False)
    assert differences(fast.records, stepwise.records) == []
    assert fast.decisions == stepwise.decisions
