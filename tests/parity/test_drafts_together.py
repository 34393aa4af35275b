"""Drafts beside a cadence and in ranks are decided as vLLM's own code did, and each rule is needed for it."""

from collections.abc import Iterator
from typing import Any

import pytest

from simulator.engine.speculative import replica
from simulator.fleet import fleet
from simulator.policies import chunked_prefill
from simulator.policies.chunked_prefill import cadence
from tests.parity import draft_cases, features
from tests.parity.test_features import broken


def differences(*kinds: str) -> Iterator[str]:
    """The recorded cases of these kinds that are decided otherwise."""
    for kind in kinds:
        for item in draft_cases.read(kind):
            try:
                found = draft_cases.first_difference(features.decide(kind, item["case"]), item["records"])
            except Exception as error:  # a broken rule may break anything
                found = f"{type(error).__name__}: {error}"
            if found is not None:
                yield f"{kind} {item['seed']}: {found}"


@pytest.mark.parametrize("kind", draft_cases.TOGETHER)
def test_recorded_cases_are_decided_as_vllm_did(kind: str) -> None:
    assert len(draft_cases.read(kind)) >= 4
    assert list(differences(kind)) == []


CADENCE, PLAN = "policies.chunked_prefill.cadence", "policies.chunked_prefill.drafted"
APPLY, REPLICA = "engine.speculative.apply", "engine.speculative.replica"
BESIDE, PASSED, RANKS = ("spec_cadence", "spec_cadence_async"), ("spec_passed",), ("spec_dp",)
FROM: dict[str, tuple[Any, str]] = {
    CADENCE: (chunked_prefill, "plan_with_cadence"),
    PLAN: (cadence, "drafted_step"),
    APPLY: (replica, "DraftedPlans"),
    REPLICA: (fleet, "SpeculativeReplica"),
    "fleet.fleet": ("simulator.fleet.cluster", "Fleet"),
    "engine.data_parallel": (fleet, "DataParallelGroup"),
    "engine.speculative.ranks": ("simulator.engine.data_parallel", "draft_together"),
}


@pytest.mark.parametrize(
    ("kinds", "module", "old", "new"),
    [
        (BESIDE, PLAN, "if held and not decodes:", "if False:"),
        (BESIDE, PLAN, "if held and whole > 1:", "if held:"),
        (BESIDE, PLAN, "if held and whole > 1:", "if False:"),
        (BESIDE, CADENCE, "if request.is_decoding:\n                continue", "if False:\n                continue"),
        (PASSED, CADENCE, "> admitted + len(passed)", "> admitted"),
        (PASSED, CADENCE, "passed = (*passed, *left.passed)", "passed = left.passed"),
        (BESIDE, APPLY, "self._viewer.view.note = part.note", "pass"),
        (BESIDE, REPLICA, "prompt_steps += len(scheduled) > 0", "prompt_steps += 0"),
        (RANKS, "fleet.fleet", "config = config.in_ranks()", "pass"),
        (RANKS, "engine.data_parallel", "dummy_verify(drafts) if drafts else _NO_TOKENS", "_NO_TOKENS"),
        (RANKS, "engine.data_parallel", "            draft_together(steps)", "            pass"),
    ],
)  # fmt: skip
def test_each_rule_is_needed(
    kinds: tuple[str, ...], module: str, old: str, new: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = broken(f"simulator.{module}", old, new)
    user, name = FROM[module]
    target = f"{user}.{name}" if isinstance(user, str) else f"{user.__name__}.{name}"
    monkeypatch.setattr(target, getattr(made, name))
    assert next(differences(*kinds), None) is not None


@pytest.mark.parametrize(
    ("kind", "old", "new"),
    [
        # D1: a victim that was scheduled gives its input slots back too
        ("spec_slots", "inputs_left += returned + slots", "inputs_left += returned"),
        # D6: an admission is padded only if a verify step fits into the model's context
        ("spec_longest", " and computed + drafts + 2 <= longest", ""),
        ("spec_longest", "computed + drafts + 2 <= longest", "computed + drafts + 1 <= longest"),
    ],
)
def test_rare_rules_are_needed(kind: str, old: str, new: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made = broken(f"simulator.{PLAN}", old, new)
    monkeypatch.setattr(chunked_prefill, "drafted_step", made.drafted_step)
    assert next(differences(kind), None) is not None
