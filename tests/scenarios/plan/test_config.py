"""The search between the steps of the grid, where nothing on the grid holds."""

import pytest

from scenarios.plan.goal import chosen_goals
from scenarios.plan.plan import make_plan
from scenarios.studies.study import parse_vary
from tests.scenarios.plan.cases import CHAT, chat

GRID = (16, 24, 32, 64, 128, 512)
BUDGET = "engine.max_num_batched_tokens"


@pytest.mark.long
def test_looks_between_the_steps_of_the_grid() -> None:
    """A small budget makes the first token late, a large one the next: the least miss lies between."""
    workload = {**CHAT["workload"], "requests": 300}
    engine = {"policy": "chunked_prefill", "max_num_seqs": 64}
    scenario = chat(workload=workload, engine=engine, hardware={"gpu": "a100-80gb"})
    goals = chosen_goals(["p99_ttft_ms<=100", "p99_tpot_ms<=12.5"], scenario)
    axes = [parse_vary(f"{BUDGET}={','.join(map(str, GRID))}")]
    plan = make_plan(scenario, goals, "config", rate=30.0, axes=axes, seeds=1)
    assert not any(answer.feasible for answer in plan.answers)
    rates = {
        answer.candidate.settings[BUDGET]: answer.bounds.value for answer in plan.answers if answer.bounds is not None
    }
    (between,) = [budget for budget in rates if budget not in GRID]
    assert rates[between] == max(rates.values())
    assert plan.answers[0].candidate.settings[BUDGET] == between
    assert len(plan.answers) == 6


def test_settings_that_change_nothing_are_tried_once() -> None:
    """Eight requests never fill a batch of 64: of the larger sizes, the scenario's own goes on."""
    workload = {**CHAT["workload"], "requests": 200}
    scenario = chat(workload=workload, engine={"policy": "chunked_prefill", "max_num_seqs": 256})
    axes = [parse_vary("engine.max_num_seqs=1,2,4,128,256,512,1024"), parse_vary(f"{BUDGET}=64,512")]
    plan = make_plan(scenario, chosen_goals(["p99_ttft_ms<=300"], scenario), "config", rate=5.0, axes=axes, seeds=1)
    sizes = [answer.candidate.settings["engine.max_num_seqs"] for answer in plan.answers]
    assert 256 in sizes
    assert not {128, 512, 1024} & {*sizes}
    assert any("had the same short runs as another" in note for note in plan.notes)
