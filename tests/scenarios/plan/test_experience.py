"""What one candidate's search teaches about another's: less work, and the same answers."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from scenarios.plan.answer import Answer, Plan
from scenarios.plan.candidate import firsts, make_candidate
from scenarios.plan.goal import Goal, chosen_goals
from scenarios.plan.plan import make_plan
from scenarios.plan.rates import Experience, Known
from scenarios.plan.trial import Trial
from simulator.policies import rules_of
from tests.scenarios.plan.cases import CHAT, chat

SLO = "p99_ttft_ms<=300"
RENAMED = """
from dataclasses import dataclass
from simulator.policies.continuous import Continuous

@dataclass(frozen=True, slots=True)
class Renamed(Continuous):
    "The same."
"""


def planned(policies: str, **options: Any) -> Plan:
    short = chat(workload={**CHAT["workload"], "requests": 200})
    return make_plan(short, chosen_goals([SLO], short), policies=policies, seeds=1, **options)


def by_policy(plan: Plan) -> dict[str, dict[str, Any]]:
    return {str(each.candidate.settings["engine.policy"]): each.entry() for each in plan.answers}


def test_a_policy_of_another_name_and_the_same_rules_is_known() -> None:
    assert rules_of("vllm") == rules_of("chunked_prefill") != rules_of("preemptive")
    names = ("vllm", "static", "chunked_prefill", "preemptive")
    base = chat()
    assert firsts([make_candidate(base, {"engine.policy": name}) for name in names]) == [0, 1, 0, 3]
    other = make_candidate(base, {"engine.policy": "chunked_prefill", "engine.max_num_seqs": 4})
    assert firsts([make_candidate(base, {"engine.policy": "vllm"}), other]) == [0, 1]


def test_a_users_policy_is_its_own(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(RENAMED)
    assert rules_of(f"{tmp_path}/mine.py:Renamed") != rules_of("continuous")


def test_twins_are_run_once_and_answered_twice() -> None:
    told: list[tuple[int, int]] = []
    plan = planned("chunked_prefill,vllm,static", progress=lambda done, total: told.append((done, total)))
    assert told == [(1, 2), (2, 2)]
    found = by_policy(plan)
    assert plan.runs == planned("vllm,static").runs
    assert found["vllm"]["rate"] == found["chunked_prefill"]["rate"]
    assert found["vllm"]["settings"]["engine.policy"] == "vllm"
    assert found["vllm"]["equal_to_best"]
    assert found["chunked_prefill"]["equal_to_best"]


def test_what_comes_out_alike_takes_two_whole_runs_more() -> None:
    """Without priorities `preemptive` serves this chat as `chunked_prefill` does, request by request."""
    both, one = planned("chunked_prefill,preemptive"), planned("chunked_prefill")
    found = by_policy(both)
    assert found["preemptive"]["rate"] == found["chunked_prefill"]["rate"] == by_policy(one)["chunked_prefill"]["rate"]
    assert both.runs < 2 * one.runs


def test_the_order_of_the_candidates_changes_no_answer() -> None:
    policies = ["static", "continuous", "chunked_prefill"]
    one, other = (planned(",".join(order)) for order in (policies, policies[::-1]))
    assert by_policy(one) == by_policy(other)


def known(latencies: list[float], rate: float = 10.0) -> tuple[Trial, Answer]:
    candidate = make_candidate(chat(), {"engine.policy": "chunked_prefill"})
    goal = Goal("p99_ttft_ms", 300.0)
    trial = Trial(rate, 1, 0, True, -0.1, goal, (goal,), (250.0,), (np.array(latencies),))
    return trial, Answer(candidate, True, 1, 10.0, trials=(trial,))


def test_another_policy_is_alike_where_every_request_is() -> None:
    trial, answer = known([1.0, np.nan, 3.0])
    experience = Experience()
    experience.learn(answer, 8.0, 10.0, 10.2)
    of_other_policy = make_candidate(chat(), {"engine.policy": "preemptive"})
    found = experience.alike(of_other_policy, 8.1)
    assert isinstance(found, Known)
    assert found.is_in([trial])
    assert not found.is_in([known([1.0, np.nan, 3.0000001])[0]])
    assert not found.is_in([replace(trial, rate=10.1)])
    assert experience.alike(of_other_policy, 8.4) is None
    assert experience.alike(of_other_policy.with_settings({"hardware.gpu": "h100"}), 8.0) is None
    assert experience.ratio(of_other_policy) == pytest.approx(10 / 8)


def test_a_candidate_is_expensive_beside_a_much_cheaper_one() -> None:
    _, answer = known([1.0])
    experience = Experience()
    assert not experience.is_expensive(answer.candidate, 1e-6)  # nothing is known yet
    experience.learn(answer, None, 10.0, 10.2)
    assert experience.is_expensive(answer.candidate, 0.4)
    assert not experience.is_expensive(answer.candidate, 0.6)
    assert not experience.known
