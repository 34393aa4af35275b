"""All laws for every way to preempt that may be combined: policy, order, mode and victim."""

from dataclasses import dataclass, replace
from typing import Any, get_args

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scenarios.check.law_trial import differences
from simulator.plan import StepPlan, View
from simulator.policies.chunked_prefill.schedule import fast_path, preempting_step, schedule_running
from simulator.policies.parts.preemption import VICTIMS, PreemptionMode
from tests.examples import examples
from tests.laws.caching import caching_scenarios, run_cached
from tests.laws.orders import ORDERS, dressed, orders
from tests.laws.scenarios import Scenario, scenarios
from tests.laws.test_fast_forward import same_with_and_without
from tests.laws.test_memory import run_checked
from tests.laws.test_naive_engine import dealt_in_turn, same_story
from tests.laws.test_purity import asked_twice

WAYS = [
    *[("preemptive", "priority", mode) for mode in get_args(get_args(PreemptionMode)[0])],
    *[("vllm_v0", order, mode) for order in ("fcfs", *ORDERS) for mode in ("recompute", "swap", "auto")],
    ("fastserve", "mlfq", "swap"),
]


@st.composite
def preempting(draw: st.DrawFn, policy: str, order: str, mode: str) -> Scenario:
    """A scenario short of slots and memory, under a policy that preempts so: who comes later often matters more."""
    scenario = dealt_in_turn(draw(scenarios(policy)))
    chosen: Any = scenario.policy
    if policy != "fastserve":
        rules = [None, *VICTIMS] if mode != "pause" else [None, "lowest_priority"]
        chosen = replace(chosen, preemption_mode=mode, victim=draw(st.sampled_from(rules)))
    if policy == "vllm_v0" and order != "fcfs":
        chosen = replace(chosen, order=draw(orders(order)))
    chosen = replace(chosen, max_num_seqs=draw(st.sampled_from([1, 2, 4])))
    memory, workload = scenario.memory, draw(dressed(scenario.workload))
    longer = draw(st.sampled_from([0, 10, 30]))
    memory = replace(
        memory,
        num_gpu_blocks=memory.num_gpu_blocks + longer // memory.block_size,
        num_host_blocks=draw(st.sampled_from([0, 3, 1000, 1000])),
    )
    count = len(workload)
    if draw(st.booleans()):
        workload = replace(workload, priority=2 - 3 * np.arange(count) // count)
    workload = replace(workload, output_tokens=workload.output_tokens + longer, max_tokens=workload.max_tokens + longer)
    return replace(
        scenario,
        policy=chosen,
        memory=memory,
        workload=workload,
        swap_s_per_block=draw(st.sampled_from([0.0, 1e-5, 1e-4])),
    )


@pytest.mark.parametrize(("policy", "order", "mode"), WAYS)
@given(data=st.data())
@examples(12)
def test_every_law(policy: str, order: str, mode: str, data: st.DataObject) -> None:
    """The naive engine's story, with and without fast-forward, pure plans, and not a block lost."""
    scenario = data.draw(preempting(policy, order, mode))
    same_story(scenario)
    same_with_and_without(scenario)
    run_checked(scenario)
    asked_twice(scenario)


@pytest.mark.slow
@pytest.mark.parametrize(("policy", "order", "mode"), WAYS)
@given(data=st.data())
@settings(max_examples=400)
def test_every_law_very_often(policy: str, order: str, mode: str, data: st.DataObject) -> None:
    scenario = data.draw(preempting(policy, order, mode))
    same_story(scenario)
    same_with_and_without(scenario)
    run_checked(scenario)


@given(data=st.data())
@examples(150)
def test_pausing_computes_for_the_most_important(data: st.DataObject) -> None:
    """With memory and budget for all nobody is recomputed, and who sits out is outranked by all who compute.

    A prompt in one step, so that nobody is under way with it.
    """
    scenario = data.draw(preempting("preemptive", "priority", "pause"))
    policy: Any = scenario.policy
    policy = replace(policy, max_num_batched_tokens=10_000)
    memory = replace(scenario.memory, num_gpu_blocks=10_000)
    run = replace(scenario, policy=policy, memory=memory, replicas=1).run(log_decisions=True)
    assert run.decisions is not None
    assert run.records.requests.preemptions.sum() == 0
    priority = scenario.workload.priority.tolist()
    for step in run.decisions:
        computing = [priority[int(request_id)] for request_id in step["scheduled"]]
        others = set(step["running"] + step["waiting"]) - set(step["scheduled"])
        if others:
            assert len(computing) == policy.max_num_seqs
            assert max(computing) <= min(priority[int(request_id)] for request_id in others)


@given(data=st.data(), mode=st.sampled_from(["recompute", "swap"]))
@examples(100)
def test_auto_is_one_of_the_two_where_one_is_free(data: st.DataObject, mode: str) -> None:
    """Where a block takes for ever to move auto recomputes all; where it takes no time it swaps whom it can."""
    scenario = data.draw(preempting("vllm_v0", "fcfs", "auto"))
    scenario = replace(scenario, swap_s_per_block=0.0 if mode == "swap" else 1e6, swap_overlap=False)
    policy: Any = scenario.policy
    fixed = replace(scenario, policy=replace(policy, preemption_mode=mode))
    once, again = scenario.run().records, fixed.run().records
    if mode == "recompute" or not once.requests.recomputed_tokens.any():
        assert differences(once, again) == []


@dataclass(slots=True)
class TwoWays:
    """A policy of vLLM's whose short look at a lack of blocks is held against the walk over all running requests."""

    inner: Any
    compared: int = 0

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "inner":
            raise AttributeError(name)
        return getattr(self.inner, name)

    @property
    def max_num_seqs(self) -> int:
        return int(self.inner.max_num_seqs)

    def plan(self, view: View) -> StepPlan:
        limits = self.inner._limits
        plan: StepPlan = self.inner.plan(view)
        if view.step_tokens is None and self.inner.prefill_schedule_interval == 1:
            short = preempting_step(view, limits, held=False)
            if short is not None and fast_path(view, limits) is None:
                run = schedule_running(view, limits)
                assert (short.preempt, short.prefill, short.paused) == (run.preempted, tuple(run.prompts()), run.paused)
                assert short == plan
                self.compared += 1
        return plan


@given(data=st.data())
@examples(600)
def test_a_lack_of_blocks_needs_no_look_at_the_whole_batch(data: st.DataObject) -> None:
    """With a prefix cache and without; what takes a block is counted from the batch."""
    scenario = data.draw(
        st.one_of(scenarios("chunked_prefill"), scenarios("chunked_prefill async"), caching_scenarios())
    )
    run = run_cached if scenario.workload.content is not None else Scenario.run
    compared = TwoWays(scenario.policy)
    assert differences(run(scenario, make_policy=lambda: compared).records, run(scenario).records) == []
