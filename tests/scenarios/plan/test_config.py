"""The search between the steps of the grid, where nothing on the grid holds."""

from __future__ import annotations

from scenarios.plan.goal import chosen_goals
from scenarios.plan.plan import make_plan
from scenarios.studies.axes import parse_vary
from tests.scenarios.plan.cases import CHAT, chat

GRID = (16, 24, 32, 64, 128, 512)
BUDGET = "engine.max_num_batched_tokens"


def test_looks_between_the_steps_of_the_grid() -> None:
    """A small budget makes the first token late, a large one the next: the least miss lies between."""
    workload = {**CHAT["workload"], "requests": 300}
    engine = {"policy": "chunked_prefill", "max_num_seqs": 64}
    scenario = chat(workload=workload, engine=engine, hardware={"gpu": "a100-80gb"})
    goals = chosen_goals(["p99_ttft_ms<=100", "p99_tpot_ms<=12.5"], scenario)
    axes = [parse_vary(f"{BUDGET}={','.join(map(str, GRID))}")]
    plan = make_plan(scenario, goals, "config", rate=30.0, axes=axes, seeds=1)
    assert not any(answer.feasible for answer in plan.answers)
    budgets = {answer.candidate.settings[BUDGET]: answer.excess for answer in plan.answers}
    (between,) = [budget for budget in budgets if budget not in GRID]
    assert budgets[between] == min(budgets.values())
    assert len(plan.answers) == 6
