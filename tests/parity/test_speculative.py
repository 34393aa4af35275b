"""Speculative decoding decides as vLLM's own code did, on every step, and each rule is needed for it."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.mutations import change
from tests.parity import features, held
from tests.parity.test_features import recorded

KINDS = [kind + mode for kind in features.SPECULATIVE for mode in ("", "_async")]
COMPARED = (*held.COLUMNS, "spec", "padded", "computed", "emitted", "next_k", "skip_drafts")


def differences(kind: str, every: int = 1) -> Iterator[str]:
    """The recorded cases of a kind that are decided otherwise; half with fast-forward, a third with ids of blocks."""

    def difference(item: dict[str, Any]) -> str | None:
        seed = item["seed"]
        ours = features.speculative(item["case"], fast_forward=seed % 2 == 0, by_id=seed % 3 == 0)
        return held.first_difference(
            ours, item["records"], lambda a, _: (*COMPARED, *(["aborted"] if "aborted" in a else []))
        )

    return held.differences(recorded(kind)[::every], difference)


@pytest.mark.parametrize("kind", KINDS)
def test_recorded_cases_are_decided_as_vllm_did(kind: str) -> None:
    assert len(recorded(kind)) == 60
    assert list(differences(kind, every=5)) == []


CONFIG = "simulator.speculative"
APPLY = "simulator.engine.itemized_apply"
RESULTS = "simulator.engine.itemized_results"
DRAFTER = "simulator.engine.itemized"
DRAFTS = "simulator.engine.parts.drafts"
REQUEST = "simulator.engine.itemized_step"
PLAN = "simulator.policies.chunked_prefill.schedule"
KEYS = "simulator.memory.block_keys"
BLOCKS = "simulator.memory.block_keys"
RULES = [
    # D1: two budgets
    ("spec_draft", f"{PLAN}:schedule_running", "inputs -= tokens + slots", "inputs -= tokens"),
    ("spec_draft", f"{PLAN}:_admit_next_item", "left.inputs - tokens - slots", "left.inputs - tokens"),
    ("spec_draft", f"{PLAN}:_admit_next_item",
     "min(left.tokens, left.inputs - slots)", "min(left.tokens, left.inputs)"),
    ("spec_draft", f"{CONFIG}:SpeculativeConfig.draft_slots",
     "if self.parallel_drafting else 1", "if self.parallel_drafting else 0"),
    ("spec_draft", f"{CONFIG}:SpeculativeConfig.draft_slots",
     "self.num_speculative_tokens if self.parallel_drafting", "1 if self.parallel_drafting"),
    # D2: what a running request asks for
    ("spec_ngram", f"{PLAN}:schedule_running",
     "tokens = threshold\n        if tokens > budget", "pass\n        if tokens > budget"),
    ("spec_eagle", f"{PLAN}:schedule_running", "tokens = longest - computed - 1", "tokens = longest - computed"),
    ("spec_ngram", f"{REQUEST}:ItemizedRequest.num_tokens_to_compute", "+ self.num_drafts - self", "- self"),
    ("spec_ngram_async", f"{REQUEST}:ItemizedRequest.num_tokens_to_compute",
     "known + self.num_output_placeholders", "known"),
    # D3: blocks beyond the step
    ("spec_eagle", f"{PLAN}:schedule_running", "reach = computed + tokens + lookahead", "reach = computed + tokens"),
    ("spec_eagle", f"{PLAN}:schedule_waiting", "computed + tokens + config.num_lookahead_tokens", "computed + tokens"),
    ("spec_eagle", f"{PLAN}:schedule_waiting",
     "cdiv(min(known, longest), size)", "cdiv(min(known + config.num_speculative_tokens, longest), size)"),
    ("spec_eagle", f"{APPLY}:ItemizedMemory.take", "num_tokens + self._lookahead", "num_tokens"),
    ("spec_eagle", f"{APPLY}:ItemizedMemory.take", "if room > live.reserved_tokens:", "if True:"),
    ("spec_draft", f"{CONFIG}:SpeculativeConfig.num_lookahead_tokens",
     '0 if self.method == "ngram" else', "0 if not self.drafts_from_hidden else"),
    # D4: rejected tokens
    ("spec_ngram", f"{RESULTS}:ItemizedResults._deliver", "-= rejected + returned - tokens", "-= returned - tokens"),
    ("spec_ngram", f"{RESULTS}:ItemizedResults._deliver",
     "self._plans.memory.enter(live, live.base_computed - live.in_flight_tokens)", "pass"),
    ("spec_ngram_async", f"{RESULTS}:ItemizedResults._deliver",
     "live.base_computed - live.in_flight_tokens", "live.base_computed"),
    ("spec_mtp", f"{APPLY}:ItemizedPlans._schedule",
     "memory.enter(live, min(computed + tokens, known))", "memory.enter(live, computed + tokens)"),
    # D5: new drafts
    ("spec_ngram", f"{DRAFTS}:Drafts._propose",
     "if not part.samples:\n                part", "if False:\n                part"),
    # D6: padded admissions
    ("spec_ngram", f"{PLAN}:schedule_waiting", "            and left.pads\n", ""),
    ("spec_ngram", f"{PLAN}:schedule_waiting", "(left.runs or computed > 0)", "left.runs"),
    ("spec_ngram", f"{PLAN}:schedule_waiting", "(left.runs or computed > 0)", "True"),
    ("spec_ngram", f"{PLAN}:schedule_waiting",
     "budget:\n                return\n        if 0", "budget:\n                pass\n        if 0"),
    ("spec_dynamic", f"{PLAN}:schedule_waiting",
     "            and config.num_speculative_tokens_per_batch_size is None\n", ""),
    ("spec_ngram", f"{DRAFTER}:Drafter.launch_part", "part.drafts and not part.padded", "part.drafts"),
    # D7: the tail
    ("spec_mtp", f"{PLAN}:_without_tail", "if 0 < rest < tail else tokens", "if False else tokens"),
    ("spec_mtp", f"{PLAN}:schedule_waiting",
     "or later):\n                passed.append(request)\n                continue",
     "or later):\n                return"),
    # D8: hashes
    ("spec_eagle", f"{CONFIG}:SpeculativeConfig.num_hash_lookahead_tokens",
     "return self.num_prefill_lookahead_tokens\n", "return 0\n"),
    ("spec_eagle", f"{BLOCKS}:BlockKeys._find_stretches",
     "self._tokens, shared, size, self._lookahead", "self._tokens, shared, size"),
    ("spec_eagle", f"{APPLY}:ItemizedMemory.enter",
     "kept_out, live.num_tokens - self._ahead", "kept_out, live.num_tokens"),
    ("spec_mtp", f"{APPLY}:ItemizedMemory.enter", "tokens - self._kept_out", "tokens"),
    ("spec_eagle", f"{DRAFTER}:Drafter.make_batch",
     "drops_hit_block=config.drops_hit_block", "drops_hit_block=False"),
    ("spec_eagle", f"{CONFIG}:SpeculativeConfig.num_hash_lookahead_tokens",
     "hashes or self.disable_eagle_block_drop", "hashes"),
    ("spec_mtp_async", f"{KEYS}:RequestKeys.__init__", "max(1, lookahead)", "1"),
    # D9, D10: how many drafts
    ("spec_dynamic", f"{CONFIG}:SpeculativeConfig.drafts_of",
     "min(ranges[place - 1][2], self.num_speculative_tokens)", "self.num_speculative_tokens"),
    ("spec_dynamic_async", f"{DRAFTS}:Drafts.propose",
     "drafts_of(len(step.scheduled))", "drafts_of(len(self._state.running))"),
    ("spec_draft", f"{DRAFTS}:Drafts.propose", "0 if step.skips_drafts else", "0 if False else"),
    ("spec_draft_async", f"{APPLY}:ItemizedPlans._schedule", "(live.num_output_placeholders > 0)", "0"),
    ("spec_draft", f"{CONFIG}:SpeculativeConfig.can_skip_drafts", 'self.model_runner == "v2" and', ""),
    # DA: asynchronous scheduling
    ("spec_ngram_async", f"{DRAFTER}:Drafter.launch_part",
     "num_output_placeholders += 1 + part.drafts", "num_output_placeholders += 1"),
    ("spec_ngram_async", f"{DRAFTER}:Drafter.launch_part",
     "live.num_drafts = next_drafts", "live.num_drafts = 0"),
    ("spec_ngram_async", f"{RESULTS}:ItemizedResults._deliver",
     "placeholders -= rejected + returned", "placeholders -= returned"),
    ("spec_ngram_async", f"{PLAN}:schedule_running", "computed + 2 - in_flight >=", "computed + 1 >="),
    ("spec_ngram_async", f"{REQUEST}:ItemizedRequest.take_back",
     "self.stale_tokens = self.in_flight_tokens", "self.stale_tokens = 0"),
    ("spec_ngram_async", f"{REQUEST}:ItemizedRequest.take_back",
     "self.num_output_placeholders = 0\n        self.stale", "self.stale"),
    ("spec_ngram_async", f"{RESULTS}:ItemizedResults._finish", "if live.status is WAITING:", "if False:"),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "place", "old", "new"), RULES)
def test_each_rule_is_needed(kind: str, place: str, old: str, new: str, monkeypatch: pytest.MonkeyPatch) -> None:
    change(monkeypatch, place, old, new)
    assert next(differences(kind), None) is not None
