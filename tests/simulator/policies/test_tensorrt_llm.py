"""TensorRT-LLM's three capacity policies by hand, and the guarantee for any memory."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.errors import InputError
from simulator.policies import load_policy, policy_parameters
from simulator.policies.tensorrt_llm import TensorrtLlm
from simulator.results.records import Status
from tests.examples import examples
from tests.hand import serve
from tests.laws.scenarios import Memory, Scenario, scenarios


def test_decodes_first_then_prompts_in_the_same_step() -> None:
    told = serve(TensorrtLlm(8, 8), [(4, 5), (6, 3)], [0.0, 1.5])
    assert told.scheduled == [{"0": 4}, {"0": 1}, {"0": 1, "1": 6}, {"0": 1, "1": 1}, {"0": 1, "1": 1}]


def test_a_cut_prompt_ends_with_a_block() -> None:
    """11 tokens a step, blocks of 4: 8, 8 and 4 of 20; what is left over takes a prompt that fits whole."""
    told = serve(TensorrtLlm(8, 11), [(20, 2), (3, 2)])
    assert told.scheduled == [{"0": 8, "1": 3}, {"0": 8, "1": 1}, {"0": 4}, {"0": 1}]


def test_a_prompt_that_finds_less_than_a_block_is_passed_over() -> None:
    """Beside two decodes 3 tokens of 5 are left: the third prompt waits for a decode less, the fourth takes one."""
    told = serve(TensorrtLlm(8, 5), [(1, 4), (1, 6), (6, 2), (1, 2)], [0.0, 0.0, 0.5, 0.5])
    assert told.scheduled == [
        {"0": 1, "1": 1},
        {"0": 1, "1": 1, "3": 1},
        {"0": 1, "1": 1, "3": 1},
        {"0": 1, "1": 1},
        {"1": 1, "2": 4},
        {"1": 1, "2": 2},
        {"2": 1},
    ]


def test_a_prompt_under_way_goes_on_before_those_behind_it() -> None:
    """Beside three decodes 5 tokens of 8 are left: a block of the fourth prompt, then what is left of it."""
    told = serve(TensorrtLlm(8, 8), [(1, 9), (3, 3), (3, 3), (9, 2), (3, 2)], [0.0, 0.5, 0.5, 1.5, 1.5])
    assert told.scheduled[1:5] == [
        {"0": 1, "1": 3, "2": 3},
        {"0": 1, "1": 1, "2": 1, "3": 4},
        {"0": 1, "1": 1, "2": 1, "3": 5},
        {"0": 1, "3": 1, "4": 3},
    ]


def test_by_equal_progress_all_prompts_advance_by_a_block_in_turn() -> None:
    """14 tokens, blocks of 4: two rounds for the first, one and the rest of its prompt for the second, none left."""
    told = serve(TensorrtLlm(8, 14, context_chunking_policy="equal_progress"), [(20, 2), (6, 2), (9, 2)])
    assert told.scheduled[:3] == [{"0": 4, "1": 6, "2": 4}, {"0": 8, "1": 1, "2": 5}, {"0": 8, "2": 1}]


def test_under_the_overlap_scheduler_an_answer_that_ends_by_itself_is_decoded_once_more() -> None:
    told = serve(TensorrtLlm(1, 64, async_scheduling=True), [(4, 2), (4, 2)], max_tokens=9)
    assert told.scheduled == [{"0": 4}, {"0": 1}, {"0": 1}, {"1": 4}, {"1": 1}, {"1": 1}]
    told = serve(TensorrtLlm(1, 64, async_scheduling=True), [(4, 2), (4, 2)], max_tokens=2)
    assert told.scheduled == [{"0": 4}, {"0": 1}, {}, {"1": 4}, {"1": 1}, {}]


def test_no_overlap_scheduler_with_max_utilization() -> None:
    with pytest.raises(ValueError, match=r"^async_scheduling must be false with capacity_policy = max_utilization"):
        TensorrtLlm(capacity_policy="max_utilization", async_scheduling=True)


def test_without_chunks_a_prompt_waits_for_room_in_a_step() -> None:
    whole = TensorrtLlm(8, 10, enable_chunked_prefill=False)
    told = serve(whole, [(6, 4), (10, 2), (1, 2)], [0.0, 0.5, 0.5])
    assert told.scheduled == [{"0": 6}, {"0": 1}, {"0": 1}, {"0": 1}, {"1": 10}, {"1": 1, "2": 1}, {"2": 1}]
    told = serve(whole, [(11, 2), (10, 2)])
    assert told.column("status") == [Status.REJECTED, Status.FINISHED]
    assert "exceed max_num_batched_tokens = 10, and enable_chunked_prefill is false" in told.records.reject_reasons[0]


def test_without_chunks_a_paused_request_must_be_computed_again_whole() -> None:
    """6 + 5 tokens may have to be prefilled in one step."""
    whole = TensorrtLlm(8, 10, "max_utilization", enable_chunked_prefill=False)
    assert serve(whole, [(6, 2)], max_tokens=6).column("status") == [Status.REJECTED]
    assert serve(whole, [(6, 2)], max_tokens=5).column("status") == [Status.FINISHED]


WAITING = TensorrtLlm(8, 20, batch_wait_timeout_iters=3, batch_wait_max_tokens_ratio=0.5)


def test_prompts_wait_beside_decodes_for_so_many_steps() -> None:
    told = serve(WAITING, [(4, 6), (4, 2)], [0.0, 0.5])
    assert told.scheduled[:5] == [{"0": 4}, {"0": 1}, {"0": 1}, {"0": 1}, {"0": 1, "1": 4}]


def test_until_with_the_decodes_they_are_a_share_of_a_step() -> None:
    """1 + 4 tokens are less than 10; with those of the third prompt there are as many."""
    told = serve(WAITING, [(4, 6), (4, 2), (5, 2)], [0.0, 0.5, 1.5])
    assert told.scheduled[:3] == [{"0": 4}, {"0": 1}, {"0": 1, "1": 4, "2": 5}]


def test_steps_of_a_wait_that_ended_for_lack_of_decodes_count_for_the_next() -> None:
    told = serve(WAITING, [(4, 3), (4, 6), (4, 2)], [0.0, 0.5, 3.5])
    assert told.scheduled[1:6] == [{"0": 1}, {"0": 1}, {"1": 4}, {"1": 1}, {"1": 1, "2": 4}]


def test_a_request_that_is_paused_while_prompts_wait_keeps_its_place() -> None:
    """Three blocks of 4: the fifth token of the first two takes one each, and the second leaves for it."""
    policy = TensorrtLlm(8, 20, "max_utilization", batch_wait_timeout_iters=9, batch_wait_max_tokens_ratio=0.9)
    told = serve(policy, [(4, 6), (4, 6)], [0.0, 0.0], memory=Memory(4, 4))
    assert told.steps("preempted")[1] == ["1"]
    assert told.scheduled[1:7] == [{"0": 1}] * 5 + [{"1": 5}]


def test_the_guarantee_makes_the_second_wait() -> None:
    """5 blocks of 4: 7 + 6 tokens are 4 blocks. Two prompts would fit; the second enters when the first is done."""
    told = serve(TensorrtLlm(8, 64), [(7, 6), (7, 6)], memory=Memory(6, 4))
    assert told.column("scheduled_s") == [0.0, 6.0]
    assert told.column("last_token_s") == [6.0, 12.0]
    assert told.column("preemptions") == [0, 0]
    assert [5 - free for free in told.steps("num_free_blocks")] == [4] * 12


def test_the_guarantee_is_for_what_was_asked_not_for_what_comes() -> None:
    told = serve(TensorrtLlm(8, 64), [(4, 2), (4, 2)], max_tokens=8, memory=Memory(6, 4))
    assert told.column("scheduled_s") == [0.0, 2.0]
    assert serve(TensorrtLlm(8, 64), [(4, 2)], max_tokens=17, memory=Memory(6, 4)).records.reject_reasons == {
        0: "4 input tokens and max_tokens = 17 reserve 6 KV blocks; there are 5"
    }


def test_max_utilization_pauses_the_latest_and_computes_it_again() -> None:
    """The same two enter together; in their second decode both need a block, and one is left."""
    told = serve(TensorrtLlm(8, 64, "max_utilization"), [(7, 6), (7, 6)], memory=Memory(6, 4))
    assert told.scheduled == [
        {"0": 7, "1": 7},
        {"0": 1, "1": 1},
        *[{"0": 1}] * 4,
        {"1": 9},
        *[{"1": 1}] * 3,
    ]
    assert told.steps("preempted")[2] == ["1"]
    assert told.column("preemptions") == [0, 1]
    assert told.column("recomputed_tokens") == [0, 8]
    assert told.column("last_token_s") == [6.0, 10.0]


def test_several_are_paused_the_latest_first_and_return_in_their_order() -> None:
    told = serve(TensorrtLlm(8, 64, "max_utilization"), [(3, 6)] * 6, memory=Memory(7, 4))
    assert told.steps("preempted")[2] == ["5", "4", "3"]
    assert told.steps("waiting")[2] == ["3", "4", "5"]
    assert told.scheduled[6] == {"3": 5, "4": 5, "5": 5}


@pytest.mark.parametrize(("blocks", "third_s"), [(9, 4.0), (10, 2.0)])
def test_max_utilization_keeps_room_for_the_rest_of_a_prompt(blocks: int, third_s: float) -> None:
    """Blocks of 4, 8 tokens a step: at 2 s the first takes its 4th block, and the second's 20 tokens are 5.

    It has one of them and computes the next; the third's 3 tokens would fit the step, and need one more block.
    """
    told = serve(TensorrtLlm(8, 8, "max_utilization"), [(12, 2), (20, 2), (3, 2)], memory=Memory(blocks + 1, 4))
    assert told.scheduled[:3] == [{"0": 8}, {"0": 4, "1": 4}, {"0": 1, "1": 4} | ({"2": 3} if blocks == 10 else {})]
    assert told.column("scheduled_s") == [0.0, 1.0, third_s]
    assert told.column("preemptions") == [0, 0, 0]


def test_a_static_batch_admits_only_when_it_is_empty() -> None:
    lengths = [(4, 5), (4, 2), (4, 2)]
    static = serve(TensorrtLlm(2, 64, "static_batch"), lengths)
    assert static.column("scheduled_s") == [0.0, 0.0, 5.0]
    assert static.steps("running")[2] == ["0"], "who has finished leaves at once"
    assert serve(TensorrtLlm(2, 64), lengths).column("scheduled_s") == [0.0, 0.0, 2.0]


def test_a_static_batch_does_not_wait_for_more() -> None:
    told = serve(TensorrtLlm(4, 64, "static_batch"), [(4, 3), (4, 2), (4, 2)], [0.0, 0.5, 1.0])
    assert told.column("scheduled_s") == [0.0, 3.0, 3.0]


def test_a_static_batch_computes_no_prompt_while_any_request_decodes() -> None:
    """12 tokens a step: the second prompt is cut, and goes on with the third when the first has been answered."""
    told = serve(TensorrtLlm(3, 12, "static_batch"), [(8, 3), (8, 2), (8, 2)])
    assert told.scheduled == [
        {"0": 8, "1": 4},
        {"0": 1},
        {"0": 1},
        {"1": 4, "2": 8},
        {"1": 1, "2": 1},
    ]


def test_max_utilization_pauses_who_passed_a_prompt_that_lacks_memory() -> None:
    """Blocks of 4, 6 tokens a step. The fourth prompt, of 8 tokens, is passed over, and the last takes a block.

    When the others have taken blocks, the third prompt, of which nothing has begun, finds two no more: the last, which
    has begun behind it, is paused.
    """
    told = serve(
        TensorrtLlm(8, 6, "max_utilization"),
        [(6, 9), (1, 9), (1, 9), (8, 2), (1, 9)],
        [0.0, 0.5, 0.5, 1.5, 1.5],
        memory=Memory(8, 4),
    )
    assert next(paused for paused in told.steps("preempted") if paused) == ["4"]
    assert told.scheduled[2] == {"0": 1, "1": 1, "2": 1, "4": 1}


@given(data=st.data())
@examples(120)
@pytest.mark.parametrize("name", ["tensorrt_llm", "tensorrt_llm static_batch"])
def test_the_guarantee_is_never_broken(name: str, data: st.DataObject) -> None:
    """Under any memory: nobody is preempted, and all who run could run to the end of what they asked for."""
    scenario: Scenario = data.draw(scenarios(name))
    run = scenario.run(log_decisions=True)
    requests, size = run.records.requests, scenario.memory.block_size
    assert (requests.preemptions == 0).all()
    assert (requests.recomputed_tokens == 0).all()
    assert run.decisions is not None
    for step in run.decisions:
        rows = [int(request_id) for request_id in step["running"]]
        most = sum(-(-int(requests.input_tokens[row] + requests.max_tokens[row]) // size) for row in rows)
        assert step["num_free_blocks"] == scenario.memory.num_gpu_blocks - 1 - most >= 0


@given(scenario=scenarios("tensorrt_llm static_batch"))
@examples(60)
def test_static_batches_never_mix_prompts_and_decodes(scenario: Scenario) -> None:
    rows = scenario.run().records.rows
    assert ((rows.decoding == 0) | (rows.prefilling == 0)).all()


@given(scenario=scenarios("tensorrt_llm max_utilization"))
@examples(60)
def test_the_latest_is_the_victim(scenario: Scenario) -> None:
    """To arrive, where requests are served in order of arrival; else to be admitted."""
    run = scenario.run(log_decisions=True)
    assert run.decisions is not None
    assert isinstance(scenario.policy, TensorrtLlm)
    order: dict[int, list[str]] = {}
    for step in run.decisions:
        before = order.get(step["replica"], [])
        paused = [*step.get("preempted_before", []), *step["preempted"]]
        if scenario.policy.order == "fcfs":
            before.sort(key=int)
        assert paused == before[::-1][: len(paused)]
        order[step["replica"]] = [request for request in step["running"] if request not in step["finished"]]


def test_capacity_policies_have_names() -> None:
    names: Any = policy_parameters(TensorrtLlm)["capacity_policy"].words
    for name in names:
        assert load_policy("tensorrt_llm", {"capacity_policy": name}) == TensorrtLlm(capacity_policy=name)
    with pytest.raises(InputError, match="must be one of guaranteed_no_evict, max_utilization, static_batch"):
        load_policy("tensorrt_llm", {"capacity_policy": "no_evict"})
