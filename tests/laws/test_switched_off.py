"""Law 9: a feature that is switched off, or has nothing to do, changes nothing."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scenarios.check.law_trial import differences
from simulator.policies.chunked_prefill import ChunkedPrefill
from simulator.policies.static import Static
from simulator.results.records import Status
from tests.examples import examples
from tests.laws.scenarios import OVERLAPPING, POLICIES, RECKONING, RESERVING, SWAPPING, Scenario, scenarios, takes


def same(a: Scenario, b: Scenario) -> bool:
    """Whether two scenarios give the same records and the same decisions."""
    once, again = a.run(log_decisions=True), b.run(log_decisions=True)
    return differences(once.records, again.records) == [] and once.decisions == again.decisions


def with_policy(scenario: Scenario, **options: Any) -> Scenario:
    policy: Any = scenario.policy
    return replace(scenario, policy=replace(policy, **options))


def equal_priorities(scenario: Scenario) -> Scenario:
    workload = scenario.workload
    return replace(scenario, workload=replace(workload, priority=np.zeros_like(workload.priority)))


@given(scenario=scenarios("chunked_prefill"))
@examples(60)
def test_no_threshold_is_a_threshold_that_nobody_reaches(scenario: Scenario) -> None:
    off = with_policy(scenario, long_prefill_token_threshold=0)
    assert same(off, with_policy(scenario, long_prefill_token_threshold=10**6))


@given(scenario=scenarios("chunked_prefill"))
@examples(60)
def test_no_watermark_is_one_of_less_than_a_block(scenario: Scenario) -> None:
    off = with_policy(scenario, watermark=0.0)
    assert same(off, with_policy(scenario, watermark=0.999 / scenario.memory.num_gpu_blocks))


@given(scenario=scenarios("chunked_prefill"))
@examples(100)
def test_equal_priorities_are_first_come_first_served(scenario: Scenario) -> None:
    """Even the victims are the same: the last to arrive is the last that was admitted."""
    fair = equal_priorities(scenario)
    assert same(with_policy(fair, order="fcfs"), with_policy(fair, order="priority"))


@pytest.mark.parametrize("name", [name for name in POLICIES if takes(name, "order")])
@given(data=st.data())
@examples(60)
def test_fcfs_is_blind_to_priorities(name: str, data: st.DataObject) -> None:
    """With the victim of the order itself: `lowest_priority` looks at priorities, whatever the order."""
    own_victim = {"victim": None} if takes(name, "victim") else {}
    blind = with_policy(data.draw(scenarios(name)), order="fcfs", **own_victim)
    once, again = blind.run(log_decisions=True), equal_priorities(blind).run(log_decisions=True)
    assert once.decisions == again.decisions


@given(scenario=scenarios("static"))
@examples(30)
def test_a_policy_without_priorities_is_blind_to_them(scenario: Scenario) -> None:
    once, again = scenario.run(log_decisions=True), equal_priorities(scenario).run(log_decisions=True)
    assert once.decisions == again.decisions


@given(scenario=scenarios("chunked_prefill"))
@examples(60)
def test_chunks_are_idle_where_every_prompt_fits_the_budget(scenario: Scenario) -> None:
    """With a budget for everything at once, chunking and the test of the whole prompt have nothing to do."""
    wide = replace(
        with_policy(scenario, max_num_batched_tokens=10_000, long_prefill_token_threshold=0),
        memory=replace(scenario.memory, num_gpu_blocks=10_000),
    )
    assert same(wide, with_policy(wide, enable_chunked_prefill=False))
    assert same(with_policy(wide, reserve_full_isl=True), with_policy(wide, reserve_full_isl=False))


@pytest.mark.parametrize("name", [name for name in POLICIES if name not in SWAPPING or takes(name, "preemption_mode")])
@given(data=st.data())
@examples(40)
def test_host_memory_that_nobody_swaps_to(name: str, data: st.DataObject) -> None:
    scenario = data.draw(scenarios(name))
    if hasattr(scenario.policy, "preemption_mode"):
        scenario = with_policy(scenario, preemption_mode="recompute")
    none = replace(scenario, memory=replace(scenario.memory, num_host_blocks=0), swap_s_per_block=0.0)
    plenty = replace(scenario, memory=replace(scenario.memory, num_host_blocks=10_000), swap_s_per_block=9.0)
    assert same(none, plenty)


@pytest.mark.parametrize("name", [name for name in SWAPPING if takes(name, "preemption_mode")])
@given(data=st.data())
@examples(60)
def test_swap_without_host_memory_is_recompute(name: str, data: st.DataObject) -> None:
    scenario = data.draw(scenarios(name))
    none = replace(scenario, memory=replace(scenario.memory, num_host_blocks=0))
    assert same(with_policy(none, preemption_mode="swap"), with_policy(none, preemption_mode="recompute"))


@given(scenario=scenarios("preemptive"))
@examples(60)
def test_preemptive_without_cause_is_chunked_prefill(scenario: Scenario) -> None:
    """Equal priorities and memory for all: nothing to preempt, and the same filling of one token budget."""
    policy: Any = scenario.policy
    calm = replace(equal_priorities(scenario), memory=replace(scenario.memory, num_gpu_blocks=10_000))
    chunked = ChunkedPrefill(policy.max_num_seqs, policy.max_num_batched_tokens)
    assert same(calm, replace(calm, policy=chunked))
    assert (calm.run().records.requests.preemptions == 0).all()


@given(scenario=scenarios("static"))
@examples(60)
def test_streaming_changes_when_tokens_are_seen_and_nothing_else(scenario: Scenario) -> None:
    streams = with_policy(scenario, stream=True).run(log_decisions=True)
    whole = with_policy(scenario, stream=False).run(log_decisions=True)
    assert streams.decisions == whole.decisions
    a, b = streams.records.requests, whole.records.requests
    done = a.status == Status.FINISHED
    assert (a.released_s[done] == b.released_s[done]).all()
    assert (b.first_token_s[done] == b.released_s[done]).all()
    assert (b.last_token_s[done] == b.released_s[done]).all()
    assert not len(whole.records.gaps.gap_s)


@given(scenario=scenarios("static"))
@examples(60)
def test_a_timeout_of_nothing_is_one_that_has_passed(scenario: Scenario) -> None:
    """Where everybody is there from the start, only the last batch can wait for more."""
    workload = replace(scenario.workload, arrival_s=np.zeros(len(scenario.workload)))
    crowd = replace(scenario, workload=workload, replicas=1)
    policy = crowd.policy
    assert isinstance(policy, Static)
    at_once = with_policy(crowd, batch_timeout_s=0.0).run(log_decisions=True).decisions
    late = with_policy(crowd, batch_timeout_s=1e-9).run(log_decisions=True).decisions
    assert at_once is not None
    assert late is not None
    assert [step["scheduled"] for step in at_once] == [step["scheduled"] for step in late]


@pytest.mark.parametrize("name", [name for name in POLICIES if name not in RECKONING])
@given(data=st.data())
@examples(30)
def test_what_clients_ask_for_beyond_their_answers(name: str, data: st.DataObject) -> None:
    """A generous max_tokens alters nothing for a policy that grants memory on demand; others reserve for it."""
    scenario = data.draw(scenarios(name))
    workload = scenario.workload
    generous = replace(scenario, workload=replace(workload, max_tokens=workload.max_tokens + 50))
    if name in RESERVING:
        wasted = generous.run().records
        assert (wasted.step_used_blocks[:1] >= 50 // scenario.memory.block_size).all()
    elif name in OVERLAPPING:
        # That an answer has ended is known a step too late where nobody can foresee it.
        wasted = generous.run().records
        assert int((wasted.rows.padded_tokens * wasted.rows.repeat).sum()) <= len(workload)
        assert (wasted.requests.output_tokens == scenario.run().records.requests.output_tokens).all()
    else:
        once, again = scenario.run(log_decisions=True), generous.run(log_decisions=True)
        assert once.decisions == again.decisions


@pytest.mark.parametrize("name", POLICIES)
@given(data=st.data())
@examples(30)
def test_answers_beyond_what_clients_asked_for(name: str, data: st.DataObject) -> None:
    """max_tokens ends an answer: how long it would have been is nobody's business, the engine's included."""
    scenario = data.draw(scenarios(name))
    workload = scenario.workload
    cap = data.draw(st.integers(1, 8))
    capped = replace(workload, max_tokens=np.full(len(workload), cap))
    long = replace(capped, output_tokens=workload.output_tokens + 100)
    exact = replace(capped, output_tokens=np.full(len(workload), cap))
    assert same(replace(scenario, workload=long), replace(scenario, workload=exact))
