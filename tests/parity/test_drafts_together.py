"""Drafts beside a cadence and in ranks are decided as vLLM's own code did, and each rule is needed for it."""

from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from simulator.engine import itemized, loop as data_parallel
from simulator.fleet import cluster
from simulator.policies import chunked_prefill
from simulator.policies.chunked_prefill import cadence
from tests.parity import draft_cases, features, held


def differences(*kinds: str) -> Iterator[str]:
    """The recorded cases of these kinds that are decided otherwise."""

    def difference(item: Mapping[str, Any]) -> str | None:
        return draft_cases.first_difference(features.decide(item["kind"], item["case"]), item["records"])

    return held.differences([item for kind in kinds for item in draft_cases.read(kind)], difference)


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
    APPLY: (itemized, "DraftedPlans"),
    REPLICA: (itemized, "SpeculativeReplica"),
    "fleet.fleet": (cluster, "Fleet"),
    "engine.data_parallel": (data_parallel, "DataParallelGroup"),
    "engine.speculative.ranks": (data_parallel, "draft_together"),
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
    held.change_rule(monkeypatch, module, old, new, [FROM[module]])
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
    held.change_rule(monkeypatch, PLAN, old, new, [(chunked_prefill, "drafted_step")])
    assert next(differences(kind), None) is not None
