"""vLLM before v1 by hand: batches of prompts or of decodes, the watermark, swapped requests first, victims LIFO."""

from typing import Any

import pytest
from hypothesis import given

from simulator.errors import InputError
from simulator.policies import load_policy
from simulator.policies.vllm_v0 import VllmV0
from tests.examples import examples
from tests.hand import serve
from tests.laws.scenarios import Memory, Scenario, scenarios

WIDE = VllmV0(max_num_seqs=8, max_num_batched_tokens=64)
SWAP = VllmV0(8, 64, preemption_mode="swap")


def test_prompts_first_and_apart() -> None:
    """The second comes at 1.5 s: at 2 s its prompt is computed, alone, while the first waits for a step."""
    told = serve(WIDE, [(4, 5), (6, 3)], [0.0, 1.5])
    assert told.scheduled == [{"0": 4}, {"0": 1}, {"1": 6}, {"0": 1, "1": 1}, {"0": 1, "1": 1}, {"0": 1}]


@given(scenario=scenarios("vllm_v0"))
@examples(150)
def test_no_step_has_both(scenario: Scenario) -> None:
    rows = scenario.run().records.rows
    assert ((rows.prefilling == 0) | (rows.decoding == 0)).all()


def test_the_watermark_is_a_hundredth_of_the_blocks() -> None:
    """100 blocks, one of them kept free. The first holds 1: a prompt of 98 enters beside it, one of 99 waits."""
    policy = VllmV0(8, 1000)
    for tokens, scheduled_s in ((392, 0.0), (393, 6.0)):
        told = serve(policy, [(4, 6), (tokens, 2)], memory=Memory(101, 4))
        assert told.column("scheduled_s") == [0.0, scheduled_s]
    # 99 blocks are no hundred: nothing is kept.
    told = serve(policy, [(4, 6), (392, 2)], memory=Memory(100, 4))
    assert told.column("scheduled_s") == [0.0, 0.0]
    off = serve(VllmV0(8, 1000, watermark=0.0), [(4, 6), (396, 2)], memory=Memory(101, 4))
    assert off.column("scheduled_s") == [0.0, 0.0]
    assert off.column("preemptions") == [0, 1], "what the watermark is for"


def test_a_prompt_that_never_clears_the_watermark_is_refused() -> None:
    told = serve(VllmV0(8, 1000), [(396, 2), (397, 2)], memory=Memory(101, 4))
    assert told.records.reject_reasons == {
        1: "397 input tokens need 100 KV blocks, and the watermark keeps 1 free; there are 100"
    }


def test_the_latest_gives_way_and_is_computed_again() -> None:
    """5 blocks of 4. Prompts of 7 take 2 each; in the second decode both need one more, and one is left."""
    told = serve(WIDE, [(7, 6), (7, 6)], memory=Memory(6, 4))
    assert told.scheduled == [
        {"0": 7, "1": 7},
        {"0": 1, "1": 1},
        *[{"0": 1}] * 4,
        {"1": 9},
        *[{"1": 1}] * 3,
    ]
    assert told.steps("preempted")[2] == ["1"]
    assert told.column("recomputed_tokens") == [0, 8]


def test_there_need_be_no_room_for_the_first_decode() -> None:
    """Beside 2 tokens, 4 fill the other block of two: in it comes, and out it goes at the next step."""
    told = serve(WIDE, [(2, 4), (4, 3)], memory=Memory(3, 4))
    assert told.scheduled == [{"0": 2, "1": 4}, *[{"0": 1}] * 3, {"1": 5}, {"1": 6}]
    assert told.column("preemptions") == [0, 2], "alone in both blocks it wants a third, though it has room"


def test_a_decode_wants_a_free_block_even_if_it_takes_none() -> None:
    """Three blocks of 4, each with a prompt of 2: nobody needs one more, and the last leaves as none is free."""
    for blocks, leaves in ((4, ["2"]), (5, [])):
        told = serve(WIDE, [(2, 3), (2, 3), (2, 3)], memory=Memory(blocks, 4))
        assert told.steps("preempted")[1] == leaves


def test_several_give_way_last_in_first_out_and_return_in_their_order() -> None:
    told = serve(WIDE, [(3, 6)] * 6, memory=Memory(8, 4))
    assert told.steps("preempted")[2] == ["5", "4", "3"]
    assert told.steps("waiting")[2] == ["3", "4", "5"]
    assert told.scheduled[6] == {"3": 5, "4": 5, "5": 5}


def test_swapped_requests_return_in_the_order_in_which_they_went() -> None:
    told = serve(VllmV0(8, 64, preemption_mode="swap"), [(3, 6)] * 6, memory=Memory(8, 4, 10))
    assert told.steps("swapped_out")[2] == ["5", "4", "3"]
    assert [back for back in told.steps("swapped_in") if back] == [["5", "4", "3"]]


def test_with_priorities_the_lowest_gives_way() -> None:
    told = serve(VllmV0(8, 64, order="priority"), [(7, 6), (7, 6)], [0.0, 0.0], priority=[1, 0], memory=Memory(6, 4))
    assert told.column("preemptions") == [1, 0]


def test_swapped_out_and_back_in() -> None:
    """The same collision with room on the host: 2 blocks go out, come back at 6 s, and nothing is prefilled."""
    told = serve(SWAP, [(7, 6), (7, 6)], memory=Memory(6, 4, 2))
    assert told.scheduled == [{"0": 7, "1": 7}, {"0": 1, "1": 1}, *[{"0": 1}] * 4, *[{"1": 1}] * 4]
    assert told.steps("swapped_out")[2] == ["1"]
    assert told.steps("swapped_in")[6] == ["1"]
    assert told.column("recomputed_tokens") == [0, 0]


def test_without_room_on_the_host_it_is_computed_again() -> None:
    told = serve(SWAP, [(7, 6), (7, 6)], memory=Memory(6, 4, 1))
    assert told.column("swapped_out_blocks") == [0, 0]
    assert told.column("recomputed_tokens") == [0, 8]


def test_nobody_begins_while_anybody_is_swapped() -> None:
    """A prompt of one token comes at 2.5 s and would fit. The swapped one returns first, at 6 s; its turn is at 7 s."""
    told = serve(SWAP, [(7, 6), (7, 6), (1, 2)], [0.0, 0.0, 2.5], memory=Memory(6, 4, 2))
    assert [5 - free for free in told.steps("num_free_blocks")[3:6]] == [3, 3, 3]
    assert told.scheduled[6:] == [{"1": 1}, {"2": 1}, {"1": 1, "2": 1}, {"1": 1}, {"1": 1}]
    assert told.column("scheduled_s") == [0.0, 0.0, 7.0]


@given(scenario=scenarios("vllm_v0"))
@examples(150)
def test_swapped_requests_come_before_new_ones(scenario: Scenario) -> None:
    """No step admits anybody while somebody's KV lies on the host, before the step or after it."""
    run = scenario.run(log_decisions=True)
    swapped: dict[int, set[str]] = {}
    for step in run.decisions or []:
        out = swapped.setdefault(step["replica"], set())
        assert not (step["admitted"] and out)
        out |= set(step["swapped_out"])
        out -= set(step["swapped_in"])


@pytest.mark.parametrize(("watermark", "back"), [(0.0, 3), (0.2, 7)])
def test_the_watermark_is_kept_from_the_swapped_too(watermark: float, back: int) -> None:
    """10 blocks. The last is swapped out at 2 s, with 4, and 4 are free, which it needs with its next token.

    Above a watermark of 2 it must wait for the end of the second, at 7 s.
    """
    policy = VllmV0(8, 64, watermark, "swap")
    told = serve(policy, [(8, 9), (8, 7), (12, 8)], memory=Memory(11, 4, 10))
    assert told.steps("swapped_out")[2] == ["2"]
    assert told.steps("swapped_in").index(["2"]) == back


def test_who_runs_takes_its_block_before_the_swapped_return() -> None:
    """5 blocks of 4. At 4 s the second needs one of the 2 that are free; the swapped one needs both."""
    told = serve(VllmV0(8, 64, 0.0, "swap"), [(4, 6), (1, 5), (5, 5)], memory=Memory(6, 4, 2))
    assert told.scheduled == [
        {"0": 4, "1": 1, "2": 5},
        {"0": 1, "1": 1},
        {"0": 1, "1": 1, "2": 1},
        *[{"0": 1, "1": 1}] * 2,
        {"0": 1, "2": 1},
        *[{"2": 1}] * 2,
    ]
    assert told.steps("swapped_out")[3] == ["2"]
    assert told.steps("swapped_in")[5] == ["2"]


def test_who_has_outgrown_the_watermark_returns_when_nobody_runs() -> None:
    """28 tokens in, 7 blocks of 10, 2 kept. Preempted with 38 tokens it needs all 10, and gets them as it is alone."""
    told = serve(VllmV0(8, 64, 0.2), [(3, 10), (28, 12)], memory=Memory(11, 4))
    assert told.steps("preempted")[2] == ["1"]
    assert told.scheduled[10] == {"1": 30}
    assert told.scheduled[18] == {"1": 38}
    assert told.column("last_token_s") == [10.0, 20.0]


def test_a_prompt_beyond_the_budget_takes_steps_in_a_row() -> None:
    """25 tokens at 10 a step; who decodes waits for all three, and the rest of the last takes another prompt in."""
    told = serve(VllmV0(8, 10), [(4, 3), (25, 2), (5, 2)], [0.0, 0.5, 0.5])
    assert told.scheduled == [
        {"0": 4},
        {"1": 10},
        {"1": 10},
        {"1": 5, "2": 5},
        {"0": 1, "1": 1, "2": 1},
        {"0": 1},
    ]


def test_a_whole_prompt_or_none_of_it() -> None:
    """6 of 10 tokens are taken: a prompt of 6 does not begin, and nobody passes it."""
    told = serve(VllmV0(8, 10), [(6, 2), (6, 2), (2, 2)])
    assert told.scheduled == [{"0": 6}, {"1": 6, "2": 2}, {"0": 1, "1": 1, "2": 1}]


def test_by_priority_the_queue_is_sorted_in_a_step_without_prefill() -> None:
    """One slot. Two come at 0.5 s: the later row is the more important, and is the head only after a decode step."""
    told = serve(VllmV0(1, 64, order="priority"), [(2, 6), (3, 2), (4, 2)], [0.0, 0.5, 0.5], priority=[0, 2, 1])
    assert told.steps("waiting")[0:2] == [[], ["2", "1"]]
    assert [next(iter(step)) for step in told.scheduled] == ["0"] * 6 + ["2"] * 2 + ["1"] * 2


def test_by_priority_the_less_important_leave_for_the_head_of_the_queue() -> None:
    """One slot: at 1 s the running request leaves for the one that came at 0.5 s; a step without tokens is none."""
    told = serve(VllmV0(1, 64, order="priority"), [(2, 6), (3, 2)], [0.0, 0.5], priority=[1, 0])
    assert told.scheduled == [{"0": 2}, {"1": 3}, {"1": 1}, {"0": 3}, *[{"0": 1}] * 4]
    assert told.column("preemptions") == [1, 0]
    assert told.column("last_token_s") == [8.0, 3.0]


def test_with_chunks_decodes_come_before_the_prompt_under_way_and_new_ones() -> None:
    """8 tokens a step, and the prompt's room is its own from the first chunk on."""
    policy = VllmV0(8, 8, enable_chunked_prefill=True)
    told = serve(policy, [(2, 5), (12, 2), (6, 2)], [0.0, 0.5, 1.5], memory=Memory(21, 4))
    assert told.scheduled == [
        {"0": 2},
        {"0": 1, "1": 7},
        {"0": 1, "1": 5, "2": 2},
        {"0": 1, "1": 1, "2": 4},
        {"0": 1, "2": 1},
    ]
    assert told.steps("num_free_blocks")[:2] == [19, 16]


def test_other_ways_of_preemption_are_refused() -> None:
    parameters: dict[str, Any] = {"preemption_mode": "pause"}
    with pytest.raises(InputError, match="must be one of recompute, swap, auto, not 'pause'"):
        load_policy("vllm_v0", parameters)
