"""Drafts beside windows are decided as vLLM's own scheduler did (0.33), and each rule is needed for that."""

from collections.abc import Iterator
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest

from simulator.simulate import simulate_fleet
from tests.mutations import change
from tests.parity import draft_cases, held
from tests.parity.cases import cost_of, workload_of
from tests.parity.features import speculation_of
from tests.parity.hybrid_features import group_of_plan

FILE = Path(__file__).with_name("data") / "recorded_draft_groups.jsonl.gz"


recorded = cache(partial(held.lines_of, FILE))


def decided(case: dict[str, Any]) -> list[dict[str, Any]]:
    """Our steps of a case."""
    cost = replace(cost_of(case), per_drafted_token_s=case["cost"]["d"])
    group = replace(group_of_plan(case, speculation=speculation_of(case)), cost=cost)
    run = simulate_fleet(workload_of(case), [group], log_decisions=True)
    assert run.decisions is not None
    return [{**step, "t_end": step["t_end_s"], "aborted": {}} for step in run.decisions]


def differences() -> Iterator[str]:
    """The cases that are decided otherwise."""
    return held.differences(
        recorded(), lambda item: draft_cases.first_difference(decided(item["case"]), item["records"])
    )


def test_recorded_cases_are_decided_as_vllm_did() -> None:
    methods = {(item["case"]["spec"]["method"], item["case"]["config"]["async_scheduling"]) for item in recorded()}
    assert len(recorded()) >= 8
    assert len(methods) >= 5
    assert list(differences()) == []


APPLY = "simulator.engine.speculative.apply"
GROUPS = "simulator.engine.hybrid.request_groups"
PLAN = "simulator.policies.chunked_prefill.drafted"


@pytest.mark.parametrize(
    ("place", "old", "new"),
    [
        (f"{APPLY}:DraftedPlans._take_of_groups", "self._drop(live)\n        asked", "asked"),
        (f"{GROUPS}:RequestGroups.asked", "self._lookahead if tokens else 0", "0"),
        (f"{GROUPS}:RequestGroups.processed", "live.base_computed - live.in_flight_tokens", "live.base_computed"),
        (f"{PLAN}:_admit_next", "blocks = groups.blocks_needed(request, 0, whole=True)", "blocks = 0"),
        (f"{PLAN}:_admit_next", "blocks = groups.blocks_needed(request, tokens)", "blocks = 0"),
        (f"{PLAN}:schedule_running", "trial.leave(victim)", "pass"),
    ],
)
def test_each_rule_is_needed(place: str, old: str, new: str, monkeypatch: pytest.MonkeyPatch) -> None:
    change(monkeypatch, place, old, new)
    assert next(differences(), None) is not None
