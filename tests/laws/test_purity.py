"""Law 7: plan() is pure: asked twice it answers the same, and nothing that can be seen has changed."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scenarios.check.law_trial import differences
from scenarios.check.laws import SEEN_OF_A_REQUEST, SEEN_OF_A_VIEW, AskedTwice, ImpureError
from simulator.plan import Chunk, StepPlan, View
from tests.examples import examples
from tests.laws.scenarios import OVERLAPPING, POLICIES, RESERVING, WHOLE_PROMPT, Scenario, scenarios


def asked_twice(scenario: Scenario) -> list[Mapping[str, Any]]:
    looks: list[Mapping[str, Any]] = []
    pure = scenario.run(make_policy=lambda: AskedTwice(scenario.policy, scenario.new_policy, looks))
    assert differences(pure.records, scenario.run().records) == []
    return looks


def test_the_snapshot_sees_everything() -> None:
    assert {"row", "num_computed_tokens", "is_swapped", "num_preemptions", "max_tokens"} <= set(SEEN_OF_A_REQUEST)
    assert {"waiting", "running", "num_free_blocks", "num_free_host_blocks", "now_s"} <= set(SEEN_OF_A_VIEW)
    assert "output_tokens" not in SEEN_OF_A_REQUEST


@pytest.mark.parametrize("name", POLICIES)
@given(data=st.data())
@examples(40)
def test_planning_is_pure(name: str, data: st.DataObject) -> None:
    asked_twice(data.draw(scenarios(name, max_requests=8)))


@pytest.mark.parametrize("name", POLICIES)
@given(data=st.data())
@examples(40)
def test_what_is_seen_is_so(name: str, data: st.DataObject) -> None:
    """The counts of a view are those of the requests in it."""
    scenario = data.draw(scenarios(name, max_requests=8))
    for seen in asked_twice(scenario):
        running, waiting, size = seen["running"], seen["waiting"], seen["block_size"]
        assert seen["num_blocks"] == scenario.memory.num_gpu_blocks - 1
        going_on = [r for r in running if r["output_tokens_so_far"] < r["max_tokens"]]
        assert going_on == running or name in OVERLAPPING, "a last token is being computed"
        assert seen["prefilling"] == [request for request in going_on if not request["is_decoding"]]
        assert seen["num_decoding"] == sum(request["is_decoding"] for request in running)
        assert not any(request["is_decoding"] or request["num_blocks"] for request in waiting)
        assert not any(request["is_swapped"] for request in running)
        assert seen["num_swapped"] == sum(request["is_swapped"] for request in waiting)
        swapped = sum(-(-request["num_computed_tokens"] // size) for request in waiting if request["is_swapped"])
        assert seen["num_free_host_blocks"] == scenario.memory.num_host_blocks - swapped
        if name not in RESERVING:
            held = sum(request["num_blocks"] for request in running)
            assert seen["num_free_blocks"] == seen["num_blocks"] - held - sum(seen["late_blocks"])
            decoding = [request for request in running if request["is_decoding"]]
            assert seen["decode_blocks_needed"] == sum(r["num_computed_tokens"] % size == 0 for r in decoding)
            kept = "num_tokens" if name in WHOLE_PROMPT else "num_computed_tokens"
            for request in running:
                tokens = request["num_computed_tokens" if request["is_decoding"] else kept]
                assert -(-tokens // size) == request["num_blocks"]
        for request in running + waiting:
            assert request["num_tokens"] == request["input_tokens"] + request["output_tokens_so_far"]
            if request["is_decoding"]:
                assert request["num_tokens_to_compute"] == 1
            assert request["arrival_s"] <= seen["now_s"]


@dataclass(frozen=True, slots=True)
class Meddler:
    """A policy that is not pure: it counts."""

    calls: list[int]
    max_num_seqs: int = 4

    def plan(self, view: View) -> StepPlan:
        self.calls.append(0)
        if len(view.waiting) and len(self.calls) % 2:
            return StepPlan(prefill=(Chunk(view.waiting.head, 1),))
        return StepPlan(prefill=tuple(Chunk(r, r.num_tokens_to_compute) for r in view.prefilling))


@given(scenario=scenarios("continuous"))
@settings(max_examples=1)
def test_a_policy_that_is_not_pure_is_found_out(scenario: Scenario) -> None:
    with pytest.raises(ImpureError, match="planning changes the policy: calls was"):
        asked_twice(replace(scenario, policy=Meddler([])))
