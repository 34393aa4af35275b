"""DeepSpeed-FastGen by hand: passes of one size filled to the last token, and waiting where others preempt."""

from dataclasses import replace
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from simulator.policies.chunked_prefill import ChunkedPrefill
from simulator.policies.fastgen import Fastgen
from simulator.policies.sarathi import Sarathi
from tests.examples import examples
from tests.hand import serve
from tests.laws.scenarios import Memory, Scenario, scenarios

WIDE = Fastgen(max_num_seqs=8, max_num_batched_tokens=64)


def test_a_pass_is_768_tokens_unless_told() -> None:
    told = serve(Fastgen(), [(700, 3), (900, 2)])
    assert told.scheduled == [{"0": 700, "1": 68}, {"0": 1, "1": 767}, {"0": 1, "1": 65}, {"1": 1}]


def test_short_prompts_are_composed_and_long_ones_split_to_fill_a_pass() -> None:
    """8 tokens a pass: the second prompt is cut to make it full, the third takes what is left of four passes."""
    told = serve(Fastgen(8, 8), [(5, 3), (5, 3), (20, 2)])
    assert told.scheduled == [
        {"0": 5, "1": 3},
        {"0": 1, "1": 2, "2": 5},
        {"0": 1, "1": 1, "2": 6},
        {"1": 1, "2": 7},
        {"2": 2},
        {"2": 1},
    ]


@given(scenario=scenarios("fastgen", max_requests=20))
@examples(200)
def test_every_pass_with_enough_to_do_is_exactly_full(scenario: Scenario) -> None:
    """A pass is short of its size only if it leaves no token of a prompt that has a slot, or could have one."""
    policy: Any = scenario.policy
    ample = replace(scenario, memory=replace(scenario.memory, num_gpu_blocks=10_000))
    slots = min(policy.max_num_seqs, policy.max_num_batched_tokens)
    left = dict(enumerate(scenario.workload.input_tokens.tolist()))
    for step in ample.run(log_decisions=True).decisions or []:
        for request_id, tokens in step["scheduled"].items():
            left[int(request_id)] -= tokens
        more_to_do = any(left[int(request_id)] > 0 for request_id in step["running"])
        if more_to_do or (step["waiting"] and len(step["running"]) < slots):
            assert sum(step["scheduled"].values()) == policy.max_num_batched_tokens


def test_a_crowd_keeps_every_pass_full_until_its_prompts_are_done() -> None:
    """60 prompts of 1 to 59 tokens, 64 a pass: as many full passes as there are, and the decodes after them."""
    lengths = [(1 + 23 * i % 59, 2 + i % 7) for i in range(60)]
    told = serve(Fastgen(40, 64), lengths)
    sizes = [sum(scheduled.values()) for scheduled in told.scheduled]
    last = next(i for i, waiting in enumerate(told.steps("waiting")) if not waiting)
    assert last > 20
    assert set(sizes[:last]) == {64}
    assert max(sizes) == 64
    assert sum(sizes) == sum(given + output - 1 for given, output in lengths)


def test_who_finds_no_block_sits_out_and_keeps_what_it_has() -> None:
    """6 blocks of 4. Two hold 2 each, the third 1; in the second decode the two need one more each, and one is left.

    The first admitted has it. The block of the third, which ends at 4 s, comes free for the pass of 6 s.
    """
    told = serve(WIDE, [(7, 6), (7, 6), (1, 4)], memory=Memory(7, 4))
    assert told.scheduled == [
        {"0": 7, "1": 7, "2": 1},
        {"0": 1, "1": 1, "2": 1},
        *[{"0": 1, "2": 1}] * 2,
        *[{"0": 1}] * 2,
        *[{"1": 1}] * 4,
    ]
    assert told.steps("running")[4:6] == [["0", "1"]] * 2
    assert told.column("preemptions") == [0, 0, 0]


def test_who_needs_no_block_goes_on_while_others_sit_out() -> None:
    """3 blocks of 4. At 1 s the first, full, takes the last; the second has room in its own until it ends at 4 s.

    Its block comes free two passes later, for that of 6 s: then the first takes it, and nothing enters before its end.
    """
    told = serve(WIDE, [(4, 7), (1, 4), (1, 2)], [0.0, 0.0, 2.5], memory=Memory(4, 4))
    assert told.scheduled == [
        {"0": 4, "1": 1},
        *[{"0": 1, "1": 1}] * 3,
        *[{"0": 1}] * 3,
        {"2": 1},
        {"2": 1},
    ]
    assert told.column("preemptions") == [0, 0, 0]


def test_a_prompt_goes_on_in_its_own_blocks_only_if_one_is_free() -> None:
    """3 blocks of 8, 3 tokens a pass. At 6 s the first has no block for its ninth token, and all are taken.

    The prompt's last 3 would fit into its own, and have to wait for a free block all the same: the first is flushed.
    """
    told = serve(Fastgen(8, 3), [(4, 7), (13, 1)], memory=Memory(4, 8))
    assert told.scheduled == [{"0": 3}, *[{"0": 1, "1": 2}] * 5, {"1": 3}, *[{"0": 3}] * 3, {"0": 1}]
    assert told.column("preemptions") == [1, 0]
    assert told.column("recomputed_tokens") == [8, 0]


def test_when_nobody_can_go_on_the_one_that_decoded_last_begins_again() -> None:
    """4 blocks of 4, all taken by 8 tokens each of two: both need one more. The pass that flushes takes no time."""
    told = serve(WIDE, [(7, 6), (7, 6)], memory=Memory(5, 4))
    assert told.scheduled == [{"0": 7, "1": 7}, {"0": 1, "1": 1}, *[{"0": 1}] * 4, {"1": 9}, *[{"1": 1}] * 3]
    assert told.steps("waiting")[2] == ["1"]
    assert told.column("last_token_s") == [6.0, 10.0]
    assert told.column("recomputed_tokens") == [0, 8]


def test_a_prompt_that_holds_all_blocks_is_computed_to_its_end() -> None:
    """One block of 16, 4 tokens a pass: DeepSpeed-MII would flush it and begin again for ever."""
    told = serve(Fastgen(8, 4), [(6, 2)], memory=Memory(2, 16))
    assert told.scheduled == [{"0": 4}, {"0": 2}, {"0": 1}]


def test_a_prompt_enters_if_all_of_it_fits_now() -> None:
    """10 blocks: beside one of 5 there is no room for one of 6, though there is for its first chunk."""
    told = serve(Fastgen(8, 8), [(20, 2), (24, 2)], memory=Memory(11, 4))
    assert told.scheduled == [{"0": 8}, {"0": 8}, {"0": 4}, {"0": 1}, *[{"1": 8}] * 3, {"1": 1}]


def test_a_prompt_under_way_waits_where_decodes_took_its_room() -> None:
    """9 blocks of 4. A prompt of 28 enters at 1 s, when 7 are free for it, and takes them in chunks of 4 tokens.

    At 5 s it has 4 when the first takes one of the 3 others: it waits, and nobody passes it. When the first ends at
    8 s its blocks are not free yet, and with nothing else to run the prompt is flushed: it goes behind the third.
    """
    told = serve(Fastgen(8, 5), [(4, 8), (28, 2), (1, 1)], [0.0, 0.5, 5.5], memory=Memory(10, 4))
    assert told.scheduled == [
        {"0": 4},
        *[{"0": 1, "1": 4}] * 4,
        *[{"0": 1}] * 3,
        {"2": 1},
        *[{"1": 5}] * 5,
        {"1": 3},
        {"1": 1},
    ]
    assert told.column("preemptions") == [0, 1, 0]


@given(data=st.data())
@examples(150)
def test_where_memory_is_no_matter_three_fillings_of_a_budget_are_one(data: st.DataObject) -> None:
    """Sarathi-Serve, FastGen and vLLM's chunked prefill with the same slots and budget decide the same at every step.

    Slots beyond the budget apart: vLLM admits to them.
    """
    scenario = data.draw(scenarios("fastgen"))
    policy: Any = scenario.policy
    tokens = policy.max_num_batched_tokens
    slots = min(policy.max_num_seqs, tokens)
    ample = replace(scenario, memory=replace(scenario.memory, num_gpu_blocks=10_000))
    told = [
        replace(ample, policy=same).run(log_decisions=True).decisions
        for same in (Fastgen(slots, tokens), Sarathi(slots, tokens, 0.0), ChunkedPrefill(slots, tokens))
    ]
    # Free blocks apart: of a prompt's blocks, and of those that come free.
    scheduled = [[{k: v for k, v in step.items() if "free" not in k} for step in steps or []] for steps in told]
    assert scheduled[0] == scheduled[1] == scheduled[2]
    assert np.all([len(steps or []) for steps in told])
