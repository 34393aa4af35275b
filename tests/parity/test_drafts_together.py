"""Drafts beside a cadence and in ranks are decided as vLLM's own code did, and each rule is needed for it."""

from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from tests.mutations import change
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


CADENCE = "simulator.policies.chunked_prefill.cadence"
PLAN = "simulator.policies.chunked_prefill.drafted"
APPLY = "simulator.engine.speculative.apply"
REPLICA = "simulator.engine.speculative.replica"
FLEET, GROUP = "simulator.fleet.fleet", "simulator.engine.data_parallel"
TOGETHER = "simulator.engine.speculative.ranks"
BESIDE, PASSED, RANKS = ("spec_cadence", "spec_cadence_async"), ("spec_passed",), ("spec_dp",)


@pytest.mark.parametrize(
    ("kinds", "place", "old", "new"),
    [
        (BESIDE, f"{PLAN}:schedule_running", "if held and not decodes:", "if False:"),
        (BESIDE, f"{PLAN}:_admit_next", "if held and whole > 1:", "if held:"),
        (BESIDE, f"{PLAN}:_admit_next", "if held and whole > 1:", "if False:"),
        (BESIDE, f"{CADENCE}:_computes_prompts",
         "if request.is_decoding:\n                continue", "if False:\n                continue"),
        (PASSED, f"{CADENCE}:plan_with_cadence", "> admitted + len(passed)", "> admitted"),
        (PASSED, f"{CADENCE}:plan_with_cadence", "passed = (*passed, *left.passed)", "passed = left.passed"),
        (BESIDE, f"{APPLY}:DraftedPlans.apply", "self._viewer.view.note = part.note", "pass"),
        (BESIDE, f"{REPLICA}:SpeculativeReplica.begin_step", "prompt_steps += len(scheduled) > 0", "prompt_steps += 0"),
        (RANKS, f"{FLEET}:_speculative", "config = config.in_ranks()", "pass"),
        (RANKS, f"{GROUP}:DataParallelGroup.__init__", "dummy_verify(drafts) if drafts else _NO_TOKENS", "_NO_TOKENS"),
        (RANKS, f"{GROUP}:DataParallelGroup._execute", "            draft_together(steps)", "            pass"),
    ],
)  # fmt: skip
def test_each_rule_is_needed(
    kinds: tuple[str, ...], place: str, old: str, new: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    change(monkeypatch, place, old, new)
    assert next(differences(*kinds), None) is not None


@pytest.mark.parametrize(
    ("kind", "place", "old", "new"),
    [
        # D1: a victim that was scheduled gives its input slots back too
        ("spec_slots", f"{PLAN}:schedule_running", "inputs_left += returned + slots", "inputs_left += returned"),
        # D6: an admission is padded only if a verify step fits into the model's context
        ("spec_longest", f"{PLAN}:_admit_next", " and computed + drafts + 2 <= longest", ""),
        ("spec_longest", f"{PLAN}:_admit_next", "computed + drafts + 2 <= longest", "computed + drafts + 1 <= longest"),
    ],
)
def test_rare_rules_are_needed(kind: str, place: str, old: str, new: str, monkeypatch: pytest.MonkeyPatch) -> None:
    change(monkeypatch, place, old, new)
    assert next(differences(kind), None) is not None
