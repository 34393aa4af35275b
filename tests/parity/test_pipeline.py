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


QUEUE = "simulator.engine.loop"
REPLICA = "simulator.engine.parts.pipeline"
REQUEST = "simulator.engine.itemized_step"
PLAN = "simulator.policies.chunked_prefill.schedule"
RESULTS = "simulator.engine.itemized_results"
RULES = [
    (f"{QUEUE}:QueueLoop.serve", "len(queue) == replica.depth", "len(queue) == max(1, replica.depth - 1)"),
    (f"{QUEUE}:QueueLoop.serve", "or not (computes or replica.has_work(called_s))", "or not computes"),
    (
        f"{QUEUE}:QueueLoop.serve",
        "if not computes and replica.idle_s > 0 and replica.has_work(called_s):",
        "if False:",
    ),
    (f"{QUEUE}:QueueLoop.serve", "replica.idle_s > 0 and replica.has_work(called_s):", "replica.idle_s > 0:"),
    (
        f"{QUEUE}:QueueLoop.serve",
        "                queue.append(step)\n",
        "                if step.shape.tokens: queue.append(step)\n",
    ),
    (f"{REPLICA}:Pipeline.joins", "self._stages + replica.overlaps", "self._stages"),
    (f"{REPLICA}:Pipeline.queued", "self._clock.plans + self._stages", "self._clock.plans + 1"),
    (
        f"{REPLICA}:Pipeline.queued",
        "self._clock.plans + self._stages",
        "self._clock.plans + self._stages + 1",
    ),
    (f"{REPLICA}:Pipeline.has_work", "self._replica.any_ended and self._cost.idle_s > 0", "False"),
    (f"{REPLICA}:Pipeline.run", "max(ready_s, free_s[stage])", "ready_s"),
    (f"{REPLICA}:Pipeline.run", "ready_s = end_s + transfer_s", "ready_s = end_s"),
    (f"{REPLICA}:Pipeline.run", "free_s[-1] = max(ready_s, free_s[-1])", "ready_s"),
    (f"{REQUEST}:ItemizedRequest.num_tokens_to_compute", "if self.clock.plans < self.decode_from:", "if False:"),
    (f"{REQUEST}:ItemizedRequest.num_tokens_to_compute", "+ self.num_output_placeholders", ""),
    (f"{PLAN}:schedule_waiting", "cast(DraftingView, request).stale_tokens", "False"),
    (f"{RESULTS}:ItemizedResults._finish", "if live.status is WAITING:", "if False:"),
    (f"{RESULTS}:ItemizedResults._deliver", "live.base_computed - live.in_flight_tokens", "live.base_computed"),
]


@pytest.mark.parametrize(("place", "old", "new"), RULES)
def test_each_rule_is_needed(place: str, old: str, new: str, monkeypatch: pytest.MonkeyPatch) -> None:
    change(monkeypatch, place, old, new)
    assert next(differences(), None) is not None
