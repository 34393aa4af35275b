"""Orca by hand: selective batching, reservations, and nobody ever preempted."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.policies.continuous import Continuous
from simulator.policies.orca import Orca
from simulator.results.records import Status
from tests.examples import examples
from tests.hand import serve
from tests.laws.scenarios import Memory, Scenario, scenarios

WIDE = Orca(max_num_seqs=8, max_num_batched_tokens=64)


@given(scenario=scenarios("orca"), blocks=st.integers(2, 60))
@examples(300)
def test_nobody_is_ever_preempted(scenario: Scenario, blocks: int) -> None:
    """Under any memory: what a request may come to need is its own before it begins."""
    memory = Memory(blocks, scenario.memory.block_size, scenario.memory.num_host_blocks)
    for short_of_memory in (scenario, Scenario(scenario.workload, scenario.policy, memory, scenario.cost)):
        run = short_of_memory.run(log_decisions=True)
        assert not any(step["preempted"] for step in run.decisions or [])
        assert not run.records.requests.preemptions.any()
        assert not run.records.requests.recomputed_tokens.any()


def test_where_others_preempt_it_lets_wait() -> None:
    """5 blocks of 4: prompts of 7 take 2 each on demand, and collide in the second decode; 13 tokens reserve 4."""
    lengths = [(7, 6), (7, 6)]
    assert serve(Continuous(8, 64), lengths, memory=Memory(6, 4)).column("preemptions") == [0, 1]
    told = serve(WIDE, lengths, memory=Memory(6, 4))
    assert told.column("scheduled_s") == [0.0, 6.0]
    assert told.column("last_token_s") == [6.0, 12.0]


def test_whole_prompts_are_mixed_with_decodes() -> None:
    """The second comes at 1.5 s: at 2 s all of its prompt is in the step in which the first decodes."""
    told = serve(WIDE, [(4, 5), (6, 3)], [0.0, 1.5])
    assert told.scheduled == [{"0": 4}, {"0": 1}, {"0": 1, "1": 6}, {"0": 1, "1": 1}, {"0": 1, "1": 1}]
    assert told.column("first_token_s") == [1.0, 3.0]
    assert told.column("last_token_s") == [5.0, 5.0]


def test_a_slot_is_taken_when_it_comes_free() -> None:
    """The third takes the second's slot at 2 s, and the first has a token in every step."""
    told = serve(Orca(2, 64), [(4, 9), (4, 2), (4, 2)])
    assert told.column("scheduled_s") == [0.0, 0.0, 2.0]
    assert told.column("last_token_s") == [9.0, 2.0, 4.0]


def test_memory_is_reserved_for_prompt_and_max_tokens() -> None:
    """6 tokens in and at most 10 out: 4 blocks of 4 from the first step to the last, however short the answer."""
    told = serve(WIDE, [(6, 5)], max_tokens=10)
    assert [1000 - free for free in told.steps("num_free_blocks")] == [4] * 5
    assert told.steps("num_free_blocks_end") == [996] * 4 + [1000]


@given(scenario=scenarios("orca"))
@examples(60)
def test_used_blocks_are_those_reserved(scenario: Scenario) -> None:
    run = scenario.run(log_decisions=True)
    workload, size = scenario.workload, scenario.memory.block_size
    reserved = -(-(workload.input_tokens + workload.max_tokens) // size)
    for step in run.decisions or []:
        used = sum(int(reserved[int(request_id)]) for request_id in step["running"])
        assert step["num_free_blocks"] == scenario.memory.num_gpu_blocks - 1 - used


def test_what_is_reserved_is_not_lent() -> None:
    """8 blocks: two reserve 16 tokens each. The third could run in what they leave unused, and waits for 4 s."""
    told = serve(WIDE, [(8, 4), (8, 6), (1, 2)], memory=Memory(9, 4), max_tokens=8)
    assert told.column("scheduled_s") == [0.0, 0.0, 4.0]


def test_nobody_passes_the_head() -> None:
    """The second reserves 6 of 8 blocks, and 5 are free; the third needs 2 and waits behind it."""
    told = serve(WIDE, [(8, 4), (20, 4), (1, 2)], memory=Memory(9, 4), max_tokens=4)
    assert told.column("scheduled_s") == [0.0, 4.0, 4.0]


def test_another_order_changes_who_is_the_head() -> None:
    told = serve(Orca(1, 64, "priority"), [(4, 2), (4, 2), (4, 2)], priority=[2, 1, 0])
    assert told.column("scheduled_s") == [4.0, 2.0, 0.0]


def test_a_prompt_that_does_not_fit_beside_the_decodes_displaces_the_latest() -> None:
    """8 tokens a step: a prompt of 6 leaves room for two of four decodes, for one step."""
    told = serve(Orca(8, 8), [(1, 4)] * 4 + [(6, 2)], [0.0] * 4 + [0.5])
    assert told.scheduled[1] == {"0": 1, "1": 1, "4": 6}
    assert told.scheduled[2] == {"0": 1, "1": 1, "2": 1, "3": 1, "4": 1}
    assert told.column("last_token_s") == [4.0, 4.0, 5.0, 5.0, 3.0]


def test_a_second_prompt_must_fit_beside_the_decodes() -> None:
    """8 tokens a step, two decodes: prompts of 4 and 3 are 9 with them. The 3 wait, and nobody is displaced."""
    told = serve(Orca(8, 8), [(1, 5), (1, 5), (4, 2), (3, 2)], [0.0, 0.0, 0.5, 0.5])
    assert told.scheduled[1] == {"0": 1, "1": 1, "2": 4}
    assert told.scheduled[2] == {"0": 1, "1": 1, "2": 1, "3": 3}


def test_a_prompt_beyond_the_budget_takes_steps_in_a_row() -> None:
    """25 tokens at 10 a step: two steps of nothing else; the rest leaves room for a decode and a prompt of 4."""
    told = serve(Orca(8, 10), [(4, 9), (25, 2), (4, 2), (1, 2)], [0.0, 0.5, 0.5, 0.5])
    assert told.scheduled == [
        {"0": 4},
        {"1": 10},
        {"1": 10},
        {"0": 1, "1": 5, "2": 4},
        {"0": 1, "1": 1, "2": 1, "3": 1},
        {"0": 1, "3": 1},
        *[{"0": 1}] * 5,
    ]


@given(scenario=scenarios("orca"))
@examples(150)
def test_only_the_budget_keeps_anybody_from_computing(scenario: Scenario) -> None:
    """In a step with a token to spare everybody who runs computes; a prompt is split only if it exceeds the budget."""
    policy = scenario.policy
    assert isinstance(policy, Orca)
    run = scenario.run(log_decisions=True)
    seen: set[str] = set()
    for step in run.decisions or []:
        scheduled = step["scheduled"]
        if sum(scheduled.values()) < policy.max_num_batched_tokens:
            assert set(scheduled) == set(step["running"])
        for request_id in scheduled.keys() - seen:
            whole = int(scenario.workload.input_tokens[int(request_id)])
            assert scheduled[request_id] == min(whole, policy.max_num_batched_tokens)
        seen |= scheduled.keys()


def test_who_could_never_reserve_is_refused() -> None:
    told = serve(WIDE, [(10, 8), (10, 6)], memory=Memory(5, 4))
    assert told.column("status") == [Status.REJECTED, Status.REJECTED]
    told = serve(WIDE, [(10, 6), (10, 1)], memory=Memory(5, 4))
    assert told.column("status") == [Status.FINISHED, Status.FINISHED]
    told = serve(WIDE, [(10, 6), (11, 6)], memory=Memory(5, 4))
    assert told.records.reject_reasons == {1: "11 input tokens and max_tokens = 6 reserve 5 KV blocks; there are 4"}


@pytest.mark.parametrize(("cap", "at_once"), [(4, 6), (12, 3)])
def test_a_generous_cap_costs_concurrency(cap: int, at_once: int) -> None:
    """12 blocks of 4, prompts and answers of 4: with a cap of 4 each reserves 2, with one of 12 each reserves 4."""
    told = serve(WIDE, [(4, 4)] * 12, memory=Memory(13, 4), max_tokens=cap)
    assert max(len(running) for running in told.steps("running")) == at_once
