"""Laws 5 and 7 with a prefix cache: equal inputs, equal bytes; and every instalment of a plan is pure."""

import os
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hypothesis import given

from scenarios.check.law_trial import differences
from scenarios.check.laws import snapshot
from simulator.plan import StepPlan, Traits, View
from simulator.simulate import Run
from tests.examples import examples
from tests.laws.caching import caching_scenarios, run_cached
from tests.laws.scenarios import Scenario
from tests.laws.test_caching import fixed_scenario, steps_of
from tests.laws.test_determinism import digest

ROOT = Path(__file__).parents[2]


@given(scenario=caching_scenarios())
@examples(60)
def test_equal_inputs_equal_results(scenario: Scenario) -> None:
    once, again = run_cached(scenario), run_cached(scenario)
    assert differences(once.records, again.records) == []
    assert once.decisions == again.decisions
    assert [list(step["scheduled"]) for step in steps_of(once)] == [list(s["scheduled"]) for s in steps_of(again)]


def fixed_digest() -> str:
    return digest(run_cached(fixed_scenario()))


def test_equal_results_in_another_process() -> None:
    """Keys of blocks are tuples with strings, which hash to something else there."""
    here = fixed_digest()
    script = "from tests.laws.test_caching_purity import fixed_digest\nprint(fixed_digest())"
    for hash_seed in ("1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
        done = subprocess.run(
            [sys.executable, "-c", script], cwd=ROOT, env=environment, capture_output=True, text=True, check=True
        )
        assert done.stdout.strip() == here


@dataclass(frozen=True, slots=True)
class Watched:
    """A policy that is asked twice for every part of a step, and what it was shown and answered."""

    inner: Any
    parts: list[tuple[dict[str, Any], StepPlan]]

    @property
    def max_num_seqs(self) -> int:
        return int(self.inner.max_num_seqs)

    @property
    def traits(self) -> Traits:
        traits: Traits = self.inner.traits
        return traits

    @property
    def caps(self) -> Any:
        return getattr(self.inner, "caps", None)

    @property
    def refuses(self) -> Any:
        return getattr(self.inner, "refuses", None)

    def plan(self, view: View) -> StepPlan:
        before = self.look(view)
        once: StepPlan = self.inner.plan(view)
        between = self.look(view)
        again: StepPlan = self.inner.plan(view)
        assert before == between == self.look(view)
        assert once == again
        self.parts.append((before, again))
        return again

    @staticmethod
    def look(view: View) -> dict[str, Any]:
        seen = snapshot(view)
        running = list(view.running)
        seen["prefix_hits"] = [view.prefix_hits(request) for request in view.waiting]
        seen["block_takers"] = [request.row for request in view.block_takers()]
        seen["blocks_freed"] = [view.blocks_freed(running[place:]) for place in range(len(running))]
        return seen


def watched(scenario: Scenario) -> tuple[Run, list[tuple[dict[str, Any], StepPlan]]]:
    parts: list[tuple[dict[str, Any], StepPlan]] = []
    run = run_cached(scenario, make_policy=lambda: Watched(scenario.policy, parts))
    assert differences(run.records, run_cached(scenario).records) == []
    return run, parts


@given(scenario=caching_scenarios(max_requests=8))
@examples(60)
def test_planning_is_pure(scenario: Scenario) -> None:
    """Each instalment of a step's plan too, and looking at what the cache holds alters nothing."""
    watched(scenario)


@given(scenario=caching_scenarios(max_requests=8))
@examples(100)
def test_what_is_seen_is_so(scenario: Scenario) -> None:
    one = replace(scenario, replicas=1)
    _, parts = watched(one)
    usable = one.memory.num_gpu_blocks - 1
    goes_on = False
    for seen, plan in parts:
        assert (seen["step_tokens"] is not None) == goes_on, "asked again exactly after a part with more to come"
        goes_on = plan.more
        assert seen["caches_prefixes"] is True
        at_ends = [
            r["row"]
            for r in seen["running"]
            if r["is_decoding"] and r["num_computed_tokens"] % one.memory.block_size == 0
        ]
        assert seen["step_tokens"] is not None or seen["block_takers"] == at_ends
        assert len(seen["blocks_freed"]) == len(seen["running"])
        if seen["running"]:
            assert seen["num_free_blocks"] + seen["blocks_freed"][0] == usable, "nobody else holds any"
        else:
            assert seen["num_free_blocks"] == usable
        assert seen["blocks_freed"] == sorted(seen["blocks_freed"], reverse=True)
        for request, (hits, unused) in zip(seen["waiting"], seen["prefix_hits"], strict=True):
            assert 0 <= unused <= hits <= (request["num_tokens"] - 1) // one.memory.block_size


@given(scenario=caching_scenarios(max_requests=8))
@examples(100)
def test_the_tokens_of_a_step_so_far(scenario: Scenario) -> None:
    """Each instalment is told what those before it compute; together that is what the step computes."""
    one = replace(scenario, replicas=1)
    run, parts = watched(one)
    totals: list[int] = []
    for seen, plan in parts:
        chunks = sum(chunk.num_tokens for chunk in plan.prefill)
        if seen["step_tokens"] is not None:
            assert seen["step_tokens"] == totals[-1]
            totals[-1] += chunks
        else:
            gone = {preemption.request.row for preemption in plan.preempt}
            still = {r.row for r in plan.paused} | gone
            decoding = [r for r in seen["running"] if r["is_decoding"] and r["row"] not in still]
            totals.append(chunks + len(decoding))
    stepwise = run_cached(one, fast_forward=False)
    assert steps_of(run) == steps_of(stepwise)
    computed = [sum(step["scheduled"].values()) for step in steps_of(run)]
    asked = iter(computed)
    # A plan may hold for several steps, and a rest computes nothing: the totals are found in the steps, in order.
    assert all(any(total == step for step in asked) for total in totals if total)
