"""vLLM before v1 by hand: batches of prompts or of decodes, the watermark, swapped requests first, victims LIFO."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings

from simulator.errors import InputError
from simulator.policies import load_policy
from simulator.policies.vllm_v0 import VllmV0
from tests.hand import serve
from tests.laws.scenarios import Memory, Scenario, scenarios

WIDE = VllmV0(max_num_seqs=8, max_num_batched_tokens=64)
SWAP = VllmV0(8, 64, preemption_mode="swap")


def test_prompts_first_and_apart() -> None:
    """The second comes at 1.5 s: at 2 s its prompt is computed, alone, while the first waits for a step."""
    told = serve(WIDE, [(4, 5), (6, 3)], [0.0, 1.5])
    assert told.scheduled == [{"0": 4}, {"0": 1}, {"1": 6}, {"0": 1, "1": 1}, {"0": 1, "1": 1}, {"0": 1}]


@given(scenario=scenarios("vllm_v0"))
@settings(max_examples=150)
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
    assert told.scheduled == [{"0": 2, "1": 4}, *[{"0": 1}] * 3, {"1": 5}, {"1": 1}]
    assert told.column("preemptions") == [0, 1]


def test_several_give_way_last_in_first_out_and_return_in_their_order() -> None:
    told = serve(WIDE, [(3, 6)] * 6, memory=Memory(7, 4))
    assert told.steps("preempted")[2] == ["5", "4", "3"]
    assert told.steps("waiting")[2] == ["3", "4", "5"]
    assert told.scheduled[6] == {"3": 5, "4": 5, "5": 5}


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
@settings(max_examples=150)
def test_swapped_requests_come_before_new_ones(scenario: Scenario) -> None:
    """No step admits anybody while somebody's KV lies on the host, before the step or after it."""
    run = scenario.run(log_decisions=True)
    swapped: dict[int, set[str]] = {}
    for step in run.decisions or []:
        out = swapped.setdefault(step["replica"], set())
        assert not (step["admitted"] and out)
        out |= set(step["swapped_out"])
        out -= set(step["swapped_in"])


@pytest.mark.parametrize(("watermark", "back"), [(0.0, 7), (0.2, 9)])
def test_the_watermark_is_kept_from_the_swapped_too(watermark: float, back: int) -> None:
    """10 blocks. The last is swapped out at 5 s, with 4; at 7 s the second has finished, and 6 are free.

    It needs 5, with its next token: above a watermark of 2 it must wait for the end of the first.
    """
    policy = VllmV0(8, 64, watermark, "swap")
    told = serve(policy, [(8, 9), (8, 7), (12, 8)], memory=Memory(11, 4, 10))
    assert told.steps("swapped_out")[5] == ["2"]
    assert told.steps("swapped_in").index(["2"]) == back


def test_who_runs_takes_its_block_before_the_swapped_return() -> None:
    """5 blocks of 4. At 5 s the first holds 2 and needs a third; the swapped one needs 3 of the 3 that are free."""
    told = serve(VllmV0(8, 64, 0.0, "swap"), [(4, 6), (1, 5), (5, 5)], memory=Memory(6, 4, 2))
    assert told.scheduled == [
        {"0": 4, "1": 1, "2": 5},
        *[{"0": 1, "1": 1, "2": 1}] * 3,
        {"0": 1, "1": 1},
        {"0": 1},
        {"2": 1},
    ]
    assert told.steps("swapped_out")[4] == ["2"]
    assert told.steps("swapped_in")[6] == ["2"]


def test_who_has_outgrown_the_watermark_returns_when_nobody_runs() -> None:
    """28 tokens in, 7 blocks of 10, 2 kept. Preempted with 33 tokens it needs 9, and gets them when it is alone."""
    told = serve(VllmV0(8, 64, 0.2), [(3, 10), (28, 12)], memory=Memory(11, 4))
    assert told.steps("preempted")[5] == ["1"]
    assert told.scheduled[10] == {"1": 33}
    assert told.column("last_token_s") == [10.0, 17.0]


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


def test_other_ways_of_preemption_are_refused() -> None:
    parameters: dict[str, Any] = {"preemption_mode": "pause"}
    with pytest.raises(InputError, match="must be one of recompute, swap, auto, not 'pause'"):
        load_policy("vllm_v0", parameters)
