"""Law 2: every block is free or owned, after every operation, on both sides; nobody waits for what can never come."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scenarios.check.law_trial import CheckingBlocks, differences
from simulator.results.records import Status
from simulator.timing.formula_cost import Linear
from tests.examples import examples
from tests.laws.scenarios import (
    FREEING_LATE,
    OVERLAPPING,
    POLICIES,
    RECKONING,
    RESERVING,
    WHOLE_PROMPT,
    Memory,
    Scenario,
    kind,
    make_policy,
    make_workload,
    scenarios,
)
from tests.laws.test_naive_engine import wild_scenarios

ONE_SECOND = Linear(1.0)


def is_empty(manager: CheckingBlocks) -> bool:
    """No request owns a block."""
    return not manager.tables and not manager.host_tables and manager.num_free == manager.num_blocks


def run_checked(scenario: Scenario) -> None:
    """Run with blocks that check themselves; whether blocks are counted or known by id makes no difference."""
    managers: list[CheckingBlocks] = []

    def make_blocks(num_blocks: int, num_host_blocks: int) -> CheckingBlocks:
        managers.append(CheckingBlocks(num_blocks, num_host_blocks))
        return managers[-1]

    checked = scenario.run(make_blocks=make_blocks, log_decisions=True)
    counted = scenario.run(log_decisions=True)
    assert differences(checked.records, counted.records) == []
    assert checked.decisions == counted.decisions
    assert len(managers) == scenario.replicas
    assert (checked.records.requests.status != Status.UNFINISHED).all()
    for index, manager in enumerate(managers):
        assert is_empty(manager), "blocks leaked"
        served = (checked.records.requests.replica == index) & (checked.records.requests.status == Status.FINISHED)
        assert bool(manager.operations) == bool(served.any())


@pytest.mark.parametrize("name", POLICIES)
@given(data=st.data())
@examples(40)
def test_blocks_are_conserved(name: str, data: st.DataObject) -> None:
    run_checked(data.draw(scenarios(name)))


@given(scenario=wild_scenarios())
@examples(40)
def test_blocks_are_conserved_under_a_wild_policy(scenario: Scenario) -> None:
    run_checked(scenario)


@pytest.mark.slow
@pytest.mark.parametrize("name", POLICIES)
@given(data=st.data())
@settings(max_examples=300)
def test_blocks_are_conserved_very_often(name: str, data: st.DataObject) -> None:
    run_checked(data.draw(scenarios(name, max_requests=30)))


@pytest.mark.parametrize("name", POLICIES)
@given(data=st.data())
@examples(40)
def test_used_blocks_are_those_that_tokens_need(name: str, data: st.DataObject) -> None:
    """Free blocks in the log, step by step, from nothing but the tokens scheduled and the sizes of the requests."""
    scenario = data.draw(scenarios(name))
    if name in RESERVING:
        return  # more than their tokens need: see the tests of static and of orca
    run = scenario.run(log_decisions=True)
    assert run.decisions is not None
    size, total = scenario.memory.block_size, scenario.memory.num_gpu_blocks - 1
    prompts = {str(row): int(tokens) for row, tokens in enumerate(scenario.workload.input_tokens)}
    kv: dict[str, int] = {}
    whole: dict[str, int] = {}
    late = [0, 0]  # blocks of those that finished in the last steps but one, and in the last
    for step in sorted(run.decisions, key=lambda step: (step["replica"], step["step"])):
        if step["step"] == 0:
            kv, whole, late = {}, dict(prompts), [0, 0]
        preempted = step.get("preempted_before", []) + step["preempted"]
        for request_id in preempted:
            if kv.get(request_id, 0) >= whole[request_id]:
                whole[request_id] = kv[request_id] + 1  # its last token is computed like its prompt
        for request_id in set(preempted) - set(step["swapped_out"]):
            kv[request_id] = 0
        for request_id, tokens in step["scheduled"].items():
            kv[request_id] = kv.get(request_id, 0) + tokens
        least = whole if name in WHOLE_PROMPT else {}
        used = {r: -(-max(kv.get(r, 0), least.get(r, 0)) // size) for r in step["running"]}
        freed = sum(used[r] for r in step["finished"])
        kept = total - sum(used.values()) - step["num_free_blocks"]
        if name in FREEING_LATE:
            assert kept in (sum(late), late[1], 0)  # sooner by steps that compute nothing, which are in no log
            late = [late[1], freed]
            continue
        assert kept == 0
        if name not in OVERLAPPING:  # there, the next step has been planned by then
            assert step["num_free_blocks_end"] == step["num_free_blocks"] + freed


@pytest.mark.parametrize("name", POLICIES)
@given(data=st.data())
@examples(40)
def test_whoever_can_never_fit_is_rejected(name: str, data: st.DataObject) -> None:
    """At once, with the reason; and whoever could run alone is served."""
    scenario = data.draw(scenarios(name))
    tight = replace(scenario, memory=replace(scenario.memory, num_gpu_blocks=data.draw(st.integers(2, 12))))
    records = tight.run().records
    workload, size = scenario.workload, scenario.memory.block_size
    usable = tight.memory.num_gpu_blocks - 1
    kept = workload.max_tokens - (kind(name) == "tgi") if name in RESERVING else workload.output_tokens - 1
    too_long = np.ceil((workload.input_tokens + kept) / size) > usable
    if name in RECKONING:  # nor may an answer be cut down to nothing
        most = [tight.policy.caps(r, usable, size) for r in workload.requests()]  # type: ignore[attr-defined] # it has
        kept = np.minimum(workload.output_tokens, most) - 1
        too_long = (np.ceil((workload.input_tokens + kept) / size) > usable) | (np.array(most) < 1)
    assert (records.requests.status == np.where(too_long, Status.REJECTED, Status.FINISHED)).all()
    for row, reason in records.reject_reasons.items():
        assert f"{workload.input_tokens[row]} input" in reason
        assert f"there are {usable}" in reason


def test_the_reason_of_a_rejection() -> None:
    """The last token is never computed: 17 tokens of KV for 10 and 8."""
    workload = make_workload([0.0, 0.0], [(10, 8), (10, 7)])
    scenario = Scenario(workload, make_policy("continuous", 4, 64), Memory(5, 4), ONE_SECOND)
    records = scenario.run().records
    assert records.requests.status.tolist() == [Status.REJECTED, Status.FINISHED]
    assert records.reject_reasons == {0: "10 input and 8 output tokens need 5 KV blocks; there are 4 (16 tokens)"}


def test_chunks_switched_off_refuse_what_exceeds_the_budget() -> None:
    """vLLM's rule would let such a prompt wait at the head of the queue for ever, and everybody behind it."""
    policy: Any = make_policy("chunked_prefill", 4, 16, enable_chunked_prefill=False)
    workload = make_workload([0.0] * 3, [(14, 4), (13, 4), (2, 4)])
    records = Scenario(workload, policy, Memory(50, 4), ONE_SECOND).run().records
    assert records.requests.status.tolist() == [Status.REJECTED, Status.FINISHED, Status.FINISHED]
    assert "enable_chunked_prefill is false" in records.reject_reasons[0]


@pytest.mark.parametrize("name", POLICIES)
def test_memory_for_exactly_one(name: str) -> None:
    """Twenty requests, each of which needs every block there is: one after the other, and everybody finishes."""
    policy = make_policy(name, 8, 64)
    workload = make_workload([0.0] * 20, [(9, 8)] * 20)
    scenario = Scenario(
        workload, policy, Memory(8 if name in RECKONING else 6 if name in RESERVING else 5, 4), ONE_SECOND
    )
    run_checked(scenario)
    assert (scenario.run().records.requests.status == Status.FINISHED).all()
