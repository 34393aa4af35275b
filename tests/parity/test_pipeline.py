"""Pipelines decide as vLLM's own batch queue did, on every batch, and each rule is needed for it."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.mutations import change
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


QUEUE = "simulator.engine.pipeline.batch_queue"
REPLICA = "simulator.engine.pipeline.replica"
REQUEST = "simulator.engine.pipeline.request"
PLAN = "simulator.policies.chunked_prefill.drafted"
RESULTS = "simulator.engine.speculative.results"
RULES = [
    (f"{QUEUE}:BatchQueueLoop.serve", "len(queue) == replica.depth", "len(queue) == max(1, replica.depth - 1)"),
    (f"{QUEUE}:BatchQueueLoop.serve", "or not (executed or replica.has_work(called_s))", "or not executed"),
    (
        f"{QUEUE}:BatchQueueLoop.serve",
        "if not executed and replica.idle_s > 0 and replica.has_work(called_s):",
        "if False:",
    ),
    (f"{QUEUE}:BatchQueueLoop.serve", "replica.idle_s > 0 and replica.has_work(called_s):", "replica.idle_s > 0:"),
    (
        f"{QUEUE}:BatchQueueLoop.serve",
        "                queue.append(batch)\n",
        "                if batch.shape.tokens: queue.append(batch)\n",
    ),
    (f"{REPLICA}:PipelinedReplica.__init__", "self._stages + self._overlaps", "self._stages"),
    (f"{REPLICA}:PipelinedReplica._launch", "decode_clock.plans + self._stages", "decode_clock.plans + 1"),
    (
        f"{REPLICA}:PipelinedReplica._launch",
        "decode_clock.plans + self._stages",
        "decode_clock.plans + self._stages + 1",
    ),
    (f"{REPLICA}:PipelinedReplica.has_work", "or (self._tells_ends and self.idle_s > 0)", ""),
    (f"{REPLICA}:PipelinedReplica._run", "max(ready_s, free_s[stage])", "ready_s"),
    (f"{REPLICA}:PipelinedReplica._run", "ready_s = end_s + transfer_s", "ready_s = end_s"),
    (f"{REPLICA}:PipelinedReplica._run", "free_s[-1] = max(now_s, free_s[-1])", "now_s"),
    (f"{REQUEST}:PipelinedRequest.num_tokens_to_compute", "if self.clock.plans < self.decode_from:", "if False:"),
    (f"{REQUEST}:PipelinedRequest.num_tokens_to_compute", "+ self.num_output_placeholders", ""),
    (f"{PLAN}:_admit_next", " or request.stale_tokens:", ":"),
    (f"{RESULTS}:VerifyResults._finish", "if live.status is WAITING:", "if False:"),
    (f"{RESULTS}:VerifyResults._deliver", "live.base_computed - live.in_flight_tokens", "live.base_computed"),
]


@pytest.mark.parametrize(("place", "old", "new"), RULES)
def test_each_rule_is_needed(place: str, old: str, new: str, monkeypatch: pytest.MonkeyPatch) -> None:
    change(monkeypatch, place, old, new)
    assert next(differences(), None) is not None
