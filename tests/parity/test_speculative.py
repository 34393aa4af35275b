"""Speculative decoding decides as vLLM's own code did, on every step, and each rule is needed for it."""

from collections.abc import Iterator
from typing import Any

import pytest

from simulator.engine import itemized
from simulator.memory import request_keys
from simulator.policies import chunked_prefill
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


CONFIG, APPLY, RESULTS = "speculative.config", "engine.speculative.apply", "engine.speculative.results"
REPLICA, REQUEST = "engine.speculative.replica", "engine.speculative.request"
PLAN, KEYS, BLOCKS = "policies.chunked_prefill.drafted", "memory.request_keys", "memory.block_keys"
RULES = [
    # D1: two budgets
    ("spec_draft", PLAN, "inputs_left -= tokens + slots", "inputs_left -= tokens"),
    ("spec_draft", PLAN, "left.inputs - tokens - slots", "left.inputs - tokens"),
    ("spec_draft", PLAN, "min(left.tokens, left.inputs - slots)", "min(left.tokens, left.inputs)"),
    ("spec_draft", CONFIG, "if self.parallel_drafting else 1", "if self.parallel_drafting else 0"),
    ("spec_draft", CONFIG, "self.num_speculative_tokens if self.parallel_drafting", "1 if self.parallel_drafting"),
    # D2: what a running request asks for
    ("spec_ngram", PLAN, "tokens = threshold\n        if tokens > tokens_", "pass\n        if tokens > tokens_"),
    ("spec_eagle", PLAN, "tokens = longest - computed - 1", "tokens = longest - computed"),
    ("spec_ngram", REQUEST, "+ self.num_drafts - self", "- self"),
    ("spec_ngram_async", REQUEST, "known + self.num_output_placeholders", "known"),
    # D3: blocks beyond the step
    ("spec_eagle", PLAN, "reach = computed + tokens + lookahead", "reach = computed + tokens"),
    ("spec_eagle", PLAN, "computed + tokens + config.num_lookahead_tokens", "computed + tokens"),
    ("spec_eagle", PLAN, "cdiv(min(known, longest), size)", "cdiv(min(known + drafts, longest), size)"),
    ("spec_eagle", APPLY, "tokens + self._lookahead, longest", "tokens, longest"),
    ("spec_eagle", APPLY, "if room > live.reserved_tokens:", "if True:"),
    ("spec_draft", CONFIG, '0 if self.method == "ngram" else', "0 if not self.drafts_from_hidden else"),
    # D4: rejected tokens
    ("spec_ngram", RESULTS, "-= rejected + returned - tokens", "-= returned - tokens"),
    ("spec_ngram", RESULTS, "self._plans.enter(live, live.base_computed - live.in_flight_tokens)", "pass"),
    ("spec_ngram_async", RESULTS, "live.base_computed - live.in_flight_tokens", "live.base_computed"),
    ("spec_mtp", APPLY, "is not None:\n            self.enter(live, min(computed + tokens, known))",
     "is not None:\n            self.enter(live, computed + tokens)"),
    # D5: new drafts
    ("spec_ngram", REPLICA, "if not part.samples:\n                part", "if False:\n                part"),
    # D6: padded admissions
    ("spec_ngram", PLAN, "whole == 1 and left.pads and", "whole == 1 and"),
    ("spec_ngram", PLAN, "(left.runs or computed > 0)", "left.runs"),
    ("spec_ngram", PLAN, "(left.runs or computed > 0)", "True"),
    ("spec_ngram", PLAN, "budget:\n                break\n        if 0", "budget:\n                pass\n        if 0"),
    ("spec_dynamic", PLAN, "config.num_speculative_tokens_per_batch_size is None and ", ""),
    ("spec_ngram", REPLICA, "part.drafts and not part.padded", "part.drafts"),
    # D7: the tail
    ("spec_mtp", PLAN, "if 0 < rest < tail else tokens", "if False else tokens"),
    ("spec_mtp", PLAN, "passed.append(request)\n            continue", "break"),
    # D8: hashes
    ("spec_eagle", CONFIG, "return self.num_prefill_lookahead_tokens\n", "return 0\n"),
    ("spec_eagle", BLOCKS, "self._tokens, shared, size, self._lookahead", "self._tokens, shared, size"),
    ("spec_eagle", APPLY, "kept_out, live.num_tokens - self._ahead", "kept_out, live.num_tokens"),
    ("spec_mtp", APPLY, "tokens - self._kept_out", "tokens"),
    ("spec_eagle", REPLICA, "drops_hit_block=config.drops_hit_block", "drops_hit_block=False"),
    ("spec_eagle", CONFIG, "hashes or self.disable_eagle_block_drop", "hashes"),
    ("spec_mtp_async", KEYS, "max(1, lookahead)", "1"),
    # D9, D10: how many drafts
    ("spec_dynamic", CONFIG, "min(ranges[place - 1][2], self.num_speculative_tokens)", "self.num_speculative_tokens"),
    ("spec_dynamic_async", REPLICA, "drafts_of(len(scheduled))", "drafts_of(len(state.running))"),
    ("spec_draft", REPLICA, "drafted = 0 if step.skips_drafts else", "drafted = 0 if False else"),
    ("spec_draft_async", APPLY, "(live.num_output_placeholders > 0)", "0"),
    ("spec_draft", CONFIG, 'self.model_runner == "v2" and', ""),
    # DA: asynchronous scheduling
    ("spec_ngram_async", REPLICA, "num_output_placeholders += 1 + part.drafts", "num_output_placeholders += 1"),
    ("spec_ngram_async", REPLICA, "live.num_drafts = next_drafts", "live.num_drafts = 0"),
    ("spec_ngram_async", RESULTS, "placeholders -= rejected + returned", "placeholders -= returned"),
    ("spec_ngram_async", PLAN, "computed + 2 - in_flight >=", "computed + 1 >="),
    ("spec_ngram_async", REQUEST, "self.stale_tokens = self.in_flight_tokens", "self.stale_tokens = 0"),
    ("spec_ngram_async", REQUEST, "self.num_output_placeholders = 0\n        self.stale", "self.stale"),
    ("spec_ngram_async", RESULTS, "if live.status is WAITING:", "if False:"),
]  # fmt: skip


# Where each module's part is taken from.
PARTS: dict[str, tuple[Any, str]] = {
    CONFIG: (features, "SpeculativeConfig"),
    PLAN: (chunked_prefill, "drafted_step"),
    APPLY: (itemized, "DraftedPlans"),
    RESULTS: (itemized, "VerifyResults"),
    REPLICA: (itemized, "SpeculativeReplica"),
    REQUEST: (itemized, "DraftingRequest"),
    KEYS: (itemized, "RequestKeys"),
    BLOCKS: (request_keys, "BlockKeys"),
}


@pytest.mark.parametrize(("kind", "module", "old", "new"), RULES)
def test_each_rule_is_needed(kind: str, module: str, old: str, new: str, monkeypatch: pytest.MonkeyPatch) -> None:
    held.change_rule(monkeypatch, module, old, new, [PARTS[module]])
    assert next(differences(kind), None) is not None
