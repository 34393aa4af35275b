"""Law 4: a step computes at most max_num_batched_tokens tokens, for at most max_num_seqs requests."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scenarios.check.laws import blocks, budgets
from simulator.timing.formula_cost import Linear
from tests.examples import examples
from tests.laws.scenarios import POLICIES, Memory, Scenario, make_policy, make_workload, scenarios


@pytest.mark.parametrize("name", POLICIES)
@given(data=st.data())
@examples(60)
def test_slots_and_tokens(name: str, data: st.DataObject) -> None:
    """Padding and the tokens of held requests count like any other. Who is paused for a better one needs no slot."""
    scenario = data.draw(scenarios(name))
    run = scenario.run(log_decisions=True)
    assert budgets(scenario, run) is None
    assert run.decisions is not None
    if getattr(scenario.policy, "preemption_mode", None) != "pause":
        assert all(len(step["running"]) <= scenario.policy.max_num_seqs for step in run.decisions)


@pytest.mark.parametrize("name", POLICIES)
@given(data=st.data())
@examples(60)
def test_memory_is_a_budget_too(name: str, data: st.DataObject) -> None:
    """Used blocks never exceed those there are; a step's tokens fit into the blocks that it uses."""
    scenario = data.draw(scenarios(name))
    run = scenario.run()
    assert run.records.num_blocks == scenario.memory.num_gpu_blocks - 1
    assert blocks(scenario, run) is None


@pytest.mark.parametrize("name", POLICIES)
@pytest.mark.parametrize("slots", [1, 3, 8])
def test_the_bounds_are_reached(name: str, slots: int) -> None:
    """A crowd fills every slot, and some step of prompts takes the whole budget."""
    eager = {"waiting_served_ratio": 0.0} if name == "tgi" else {}
    policy = make_policy(name, slots, 16, **eager)
    # Prompts longer than a step would wait there until all decodes have ended, one after the other.
    first = 2 if name == "tensorrt_llm static_batch" else 40
    workload = make_workload([0.0] * 20, [(first, 30)] * 10 + [(40, 30)] * 10)
    rows = Scenario(workload, policy, Memory(1000, 4), Linear(0.01)).run().records.rows
    assert rows.running.max() == slots
    assert rows.tokens.max() == 16


@pytest.mark.parametrize("name", POLICIES)
def test_more_slots_than_tokens(name: str) -> None:
    """Whoever decodes needs a token of the budget: it bounds the batch where it is smaller than max_num_seqs."""
    policy = make_policy(name, 16, 4)
    workload = make_workload([0.0] * 12, [(4, 30)] * 12)
    records = Scenario(workload, policy, Memory(1000, 4), Linear(0.01)).run().records
    assert records.rows.tokens.max() == 4
    assert (records.requests.output_tokens == 30).all()
