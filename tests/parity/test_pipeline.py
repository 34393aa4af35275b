"""Pipelines decide as vLLM's own batch queue did, on every batch, and each rule is needed for it."""

from collections.abc import Iterator
from typing import Any

import pytest

from simulator.engine import itemized as speculative_replica
from simulator.engine.parts import pipeline as parts
from simulator.policies import chunked_prefill
from tests.parity import features, held
from tests.parity.pipeline_features import pipeline
from tests.parity.test_features import recorded


def differences(every: int = 1) -> Iterator[str]:
    """The recorded cases that are decided otherwise; half with fast-forward, a third with ids of blocks."""

    def difference(item: dict[str, Any]) -> str | None:
        seed = item["seed"]
        ours = pipeline(item["case"], fast_forward=seed % 2 == 0, by_id=seed % 3 == 0)
        return held.first_difference(ours, item["records"], lambda _, __: held.COLUMNS, ("t_start", "t_end"))

    return held.differences(recorded("pipeline")[::every], difference)


def test_recorded_cases_are_decided_as_vllm_did() -> None:
    assert len(recorded("pipeline")) == 60
    assert list(differences(every=4)) == []
    assert features.DECIDES["pipeline"] is pipeline


QUEUE, REPLICA, REQUEST = "engine.pipeline.batch_queue", "engine.pipeline.replica", "engine.pipeline.request"
PLAN, RESULTS = "policies.chunked_prefill.drafted", "engine.speculative.results"
RULES = [
    (QUEUE, "len(queue) == replica.depth", "len(queue) == max(1, replica.depth - 1)"),
    (QUEUE, "or not (executed or replica.has_work(called_s))", "or not executed"),
    (QUEUE, "if not executed and replica.idle_s > 0 and replica.has_work(called_s):", "if False:"),
    (QUEUE, "replica.idle_s > 0 and replica.has_work(called_s):", "replica.idle_s > 0:"),
    (QUEUE, "                queue.append(batch)\n", "                if batch.shape.tokens: queue.append(batch)\n"),
    (REPLICA, "self._stages + self._overlaps", "self._stages"),
    (REPLICA, "decode_clock.plans + self._stages", "decode_clock.plans + 1"),
    (REPLICA, "decode_clock.plans + self._stages", "decode_clock.plans + self._stages + 1"),
    (REPLICA, "or (self._tells_ends and self.idle_s > 0)", ""),
    (REPLICA, "max(ready_s, free_s[stage])", "ready_s"),
    (REPLICA, "ready_s = end_s + transfer_s", "ready_s = end_s"),
    (REPLICA, "free_s[-1] = max(now_s, free_s[-1])", "now_s"),
    (REQUEST, "if self.clock.plans < self.decode_from:", "if False:"),
    (REQUEST, "+ self.num_output_placeholders", ""),
    (PLAN, " or request.stale_tokens:", ":"),
    (RESULTS, "if live.status is WAITING:", "if False:"),
    (RESULTS, "live.base_computed - live.in_flight_tokens", "live.base_computed"),
]

# Where each module's part is taken from.
PARTS: dict[str, tuple[Any, str]] = {
    QUEUE: (parts, "BatchQueueLoop"),
    REPLICA: (parts, "PipelinedReplica"),
    REQUEST: (parts, "PipelinedRequest"),
    PLAN: (chunked_prefill, "drafted_step"),
    RESULTS: (speculative_replica, "VerifyResults"),
}


@pytest.mark.parametrize(("module", "old", "new"), RULES)
def test_each_rule_is_needed(module: str, old: str, new: str, monkeypatch: pytest.MonkeyPatch) -> None:
    held.change_rule(monkeypatch, module, old, new, [PARTS[module]])
    assert next(differences(), None) is not None
