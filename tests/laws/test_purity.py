"""Law 7: plan() is pure: asked twice it answers the same, and nothing that can be seen has changed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.plan import Chunk, Policy, StepPlan, Traits, View
from simulator.request import RequestView
from tests.laws.compare import differences
from tests.laws.scenarios import OVERLAPPING, POLICIES, RESERVING, Scenario, scenarios

SEEN_OF_A_REQUEST = [name for name in vars(RequestView) if not name.startswith("_")]
SEEN_OF_A_VIEW = [name for name in vars(View) if not name.startswith("_")]


def snapshot(view: View) -> dict[str, Any]:
    """Everything that can be seen, copied: numbers, orders, and every member of every request."""
    seen: dict[str, Any] = {}
    for name in SEEN_OF_A_VIEW:
        value = getattr(view, name)
        if name in ("waiting", "running", "prefilling"):
            seen[name] = [{key: getattr(request, key) for key in SEEN_OF_A_REQUEST} for request in value]
            seen[f"len({name})"] = len(value)
        else:
            seen[name] = value
    return seen


@dataclass(frozen=True, slots=True)
class AskedTwice:
    """A policy that is asked twice at every step, and looked at before, between and after."""

    inner: Any
    looks: list[Mapping[str, Any]]

    @property
    def max_num_seqs(self) -> int:
        return int(self.inner.max_num_seqs)

    @property
    def traits(self) -> Traits:
        traits: Traits = getattr(self.inner, "traits", Traits())
        return traits

    def refuses(self, request: RequestView, num_blocks: int, block_size: int) -> str | None:
        refuses = getattr(self.inner, "refuses", None)
        reason: str | None = None if refuses is None else refuses(request, num_blocks, block_size)
        return reason

    def plan(self, view: View) -> StepPlan:
        parameters = asdict(self.inner)
        before = snapshot(view)
        once: StepPlan = self.inner.plan(view)
        between = snapshot(view)
        again: StepPlan = self.inner.plan(view)
        assert before == between == snapshot(view)
        assert once == again
        assert asdict(self.inner) == parameters, "a policy keeps no state"
        self.looks.append(before)
        return again


def asked_twice(scenario: Scenario) -> list[Mapping[str, Any]]:
    looks: list[Mapping[str, Any]] = []
    policy: Policy = AskedTwice(scenario.policy, looks)
    pure = replace(scenario, policy=policy).run()
    assert differences(pure.records, scenario.run().records) == []
    return looks


def test_the_snapshot_sees_everything() -> None:
    assert {"row", "num_computed_tokens", "is_swapped", "num_preemptions", "max_tokens"} <= set(SEEN_OF_A_REQUEST)
    assert {"waiting", "running", "num_free_blocks", "num_free_host_blocks", "now_s"} <= set(SEEN_OF_A_VIEW)
    assert "output_tokens" not in SEEN_OF_A_REQUEST


@pytest.mark.parametrize("name", POLICIES)
@given(data=st.data())
@settings(max_examples=40)
def test_planning_is_pure(name: str, data: st.DataObject) -> None:
    asked_twice(data.draw(scenarios(name, max_requests=8)))


@pytest.mark.parametrize("name", POLICIES)
@given(data=st.data())
@settings(max_examples=40)
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
            assert seen["num_free_blocks"] == seen["num_blocks"] - held
            decoding = [request for request in running if request["is_decoding"]]
            assert seen["decode_blocks_needed"] == sum(r["num_computed_tokens"] % size == 0 for r in decoding)
            assert all(-(-r["num_computed_tokens"] // size) == r["num_blocks"] for r in running)
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
    with pytest.raises(AssertionError):
        asked_twice(replace(scenario, policy=Meddler([])))
