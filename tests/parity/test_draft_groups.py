"""Drafts beside windows are decided as vLLM's own scheduler did (0.33), and each rule is needed for that."""

import gzip
import json
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from simulator.engine.speculative import replica
from simulator.policies import chunked_prefill
from simulator.simulate import simulate_fleet
from tests.parity import draft_cases
from tests.parity.cases import cost_of, workload_of
from tests.parity.features import speculation_of
from tests.parity.hybrid_features import group_of_plan
from tests.parity.test_features import broken

FILE = Path(__file__).with_name("data") / "recorded_draft_groups.jsonl.gz"


@cache
def recorded() -> list[dict[str, Any]]:
    with gzip.open(FILE, "rt") as lines:
        return [json.loads(line) for line in lines]


def decided(case: dict[str, Any]) -> list[dict[str, Any]]:
    """Our steps of a case."""
    cost = replace(cost_of(case), per_drafted_token_s=case["cost"]["d"])
    group = replace(group_of_plan(case, speculation=speculation_of(case)), cost=cost)
    run = simulate_fleet(workload_of(case), [group], log_decisions=True)
    assert run.decisions is not None
    return [{**step, "t_end": step["t_end_s"], "aborted": {}} for step in run.decisions]


def differences() -> Iterator[str]:
    for item in recorded():
        try:
            found = draft_cases.first_difference(decided(item["case"]), item["records"])
        except Exception as error:  # a broken rule may break anything
            found = f"{type(error).__name__}: {error}"
        if found is not None:
            yield f"case {item['seed']}: {found}"


def test_recorded_cases_are_decided_as_vllm_did() -> None:
    methods = {(item["case"]["spec"]["method"], item["case"]["config"]["async_scheduling"]) for item in recorded()}
    assert len(recorded()) >= 8
    assert len(methods) >= 5
    assert list(differences()) == []


APPLY, GROUPS, PLAN = "engine.speculative.apply", "engine.hybrid.request_groups", "policies.chunked_prefill.drafted"
USERS: dict[str, tuple[Any, str]] = {
    APPLY: (replica, "DraftedPlans"),
    GROUPS: (replica, "RequestGroups"),
    PLAN: (chunked_prefill, "drafted_step"),
}


@pytest.mark.parametrize(
    ("module", "old", "new"),
    [
        (APPLY, "self._drop(live)\n        asked", "asked"),
        (GROUPS, "self._lookahead if tokens else 0", "0"),
        (GROUPS, "live.base_computed - live.in_flight_tokens", "live.base_computed"),
        (PLAN, "blocks = groups.blocks_needed(request, 0, whole=True)", "blocks = 0"),
        (PLAN, "blocks = groups.blocks_needed(request, tokens)", "blocks = 0"),
        (PLAN, "trial.leave(victim)", "pass"),
    ],
)
def test_each_rule_is_needed(module: str, old: str, new: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made = broken(f"simulator.{module}", old, new)
    user, name = USERS[module]
    monkeypatch.setattr(user, name, getattr(made, name))
    assert next(differences(), None) is not None
