"""Goals: what can be asked for, how far a value is from it, and what is said of what cannot."""

import math

import pytest

from scenarios.plan.goal import Goal, chosen_goals, goals_of, parse_goal
from scenarios.schema.loader import load
from simulator.errors import InputError
from tests.traffic import one_class

SCENARIO = {
    "model": "llama-3.1-8b",
    "workload": one_class(10, 1, 10, 10, name="chat"),
}


@pytest.mark.parametrize(
    ("text", "goal"),
    [
        ("p99_ttft_ms<=500", Goal("p99_ttft_ms", 500.0)),
        (" mean_tpot_ms <= 2.5e1 ", Goal("mean_tpot_ms", 25.0)),
        ("chat:p99_tpot_ms<=50", Goal("p99_tpot_ms", 50.0, class_name="chat")),
        ("request_throughput>=3", Goal("request_throughput", 3.0, at_least=True)),
        ("preemptions<=0", Goal("preemptions", 0.0)),
    ],
)
def test_reads_goals(text: str, goal: Goal) -> None:
    found = parse_goal(text, load(SCENARIO))
    assert found == goal
    assert parse_goal(found.text, load(SCENARIO)) == goal


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("p99_ttf_ms<=500", ["no key 'p99_ttf_ms'", "did you mean `p99_ttft_ms`?"]),
        ("ttft_ms<=500", ["did you mean `p99_ttft_ms`?"]),
        ("ttft_p99<=1000", ["did you mean `p99_ttft_ms`?", "docs/run-folder.md"]),
        ("tpot_ms_p50<=50", ["did you mean `p50_tpot_ms`?"]),
        ("p99_ttft_ms<500", ["'<' is no limit", "allowed: <= and >="]),
        ("p99_ttft_ms=500", ["is no limit"]),
        ("p99_ttft_ms", ["METRIC<=VALUE"]),
        ("p99_ttft_ms<=fast", ["METRIC<=VALUE"]),
        ("p99_ttft_ms>=500", ["less is better", "did you mean `p99_ttft_ms<=500`?"]),
        ("request_throughput<=5", ["more is better"]),
        ("chta:p99_ttft_ms<=500", ["no class is called 'chta'", "did you mean `chat`?"]),
        ("chat:p99_itl_ms<=500", ["p99_itl_ms is not computed for single classes"]),
        ("slo_attainment>=0.99", ["the scenario has none", "--set slo.ttft_ms"]),
        ("batch_occupancy<=1.5", ["1.5 cannot be a limit"]),
        ("p99_ttft_ms<=0", ["a latency cannot be 0"]),
    ],
)
def test_says_what_is_wrong(text: str, said: list[str]) -> None:
    with pytest.raises(InputError) as caught:
        parse_goal(text, load(SCENARIO))
    assert str(caught.value).startswith(f"--slo {text}: ")
    for words in said:
        assert words in str(caught.value)


def test_takes_the_goals_of_the_scenario() -> None:
    slo = {"ttft_ms": 500, "p99_tpot_ms": 40, "classes": {"chat": {"p99_ttft_ms": 900}}}
    found = goals_of(load({**SCENARIO, "slo": slo}))
    assert [goal.text for goal in found] == ["p99_tpot_ms<=40", "slo_attainment>=0.99", "chat:p99_ttft_ms<=900"]
    with pytest.raises(InputError, match="no SLO to plan for"):
        chosen_goals([], load(SCENARIO))
    assert [goal.text for goal in chosen_goals(["p50_ttft_ms<=1"], load({**SCENARIO, "slo": slo}))] == [
        "p50_ttft_ms<=1"
    ]


@pytest.mark.parametrize("goal", [Goal("p99_ttft_ms", 100), Goal("slo_attainment", 0.99, True), Goal("preemptions", 0)])
def test_excess_is_above_0_where_the_goal_is_missed(goal: Goal) -> None:
    for value in (0.0, 0.5, 0.99, 0.995, 1.0, 99.9, 100.0, 100.1, 1e9):
        if goal.metric == "slo_attainment" and value > 1:
            continue
        assert (goal.excess(value) > 0) != goal.holds(value)
    assert not goal.holds(None)
    assert goal.excess(None) > 0
    assert not goal.holds(math.nan)


def test_limits_of_slower_steps() -> None:
    assert Goal("p99_ttft_ms", 105).scaled(1.05).limit == pytest.approx(100)
    assert Goal("slo_attainment", 0.99, True).scaled(1.05).limit == 0.99
