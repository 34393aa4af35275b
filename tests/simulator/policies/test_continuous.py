"""Plain continuous batching by hand."""

import numpy as np

from simulator.policies.continuous import Continuous
from tests.hand import serve
from tests.laws.scenarios import Memory

WIDE = Continuous(max_num_seqs=8, max_num_batched_tokens=64)


def test_prompts_first_then_everybody_decodes() -> None:
    """The second comes at 1.5 s: at 2 s its prompt is computed, alone, while the first waits for a step."""
    told = serve(WIDE, [(4, 5), (6, 3)], [0.0, 1.5])
    assert told.scheduled == [{"0": 4}, {"0": 1}, {"1": 6}, {"0": 1, "1": 1}, {"0": 1, "1": 1}, {"0": 1}]
    assert told.column("scheduled_s") == [0.0, 2.0]
    assert told.column("first_token_s") == [1.0, 3.0]
    assert told.column("last_token_s") == [6.0, 5.0]
    # The first's tokens at 1, 2, 4, 5, 6 s; the second's at 3, 4, 5 s.
    gaps = np.repeat(told.records.gaps.gap_s, told.records.gaps.count).tolist()
    rows = told.records.rows
    for first, repeat, decoding in zip(rows.first_step, rows.repeat, rows.decoding, strict=True):
        gaps += np.repeat(np.diff(told.records.step_end_s[first : first + repeat]), decoding).tolist()
    assert sorted(gaps) == [1.0, 1.0, 1.0, 1.0, 1.0, 2.0]


def test_prompts_share_a_step() -> None:
    told = serve(WIDE, [(4, 2), (6, 2), (8, 2)])
    assert told.scheduled == [{"0": 4, "1": 6, "2": 8}, {"0": 1, "1": 1, "2": 1}]


def test_a_slot_is_taken_when_it_comes_free() -> None:
    """Iteration level: the third enters after the second's last token, at 2 s, not at the end of a batch."""
    told = serve(Continuous(2, 64), [(4, 9), (4, 2), (4, 2)])
    assert told.column("scheduled_s") == [0.0, 0.0, 2.0]
    assert told.column("last_token_s") == [10.0, 2.0, 4.0]


def test_whole_prompts_only() -> None:
    """6 of 10 tokens are taken: a prompt of 6 does not begin, and nobody passes it."""
    told = serve(Continuous(8, 10), [(6, 2), (6, 2), (2, 2)])
    assert told.scheduled == [{"0": 6}, {"1": 6, "2": 2}, {"0": 1, "1": 1, "2": 1}]


def test_a_prompt_beyond_the_budget_takes_steps_in_a_row() -> None:
    """25 tokens at 10 a step; who decodes waits for all three, and the rest of the last takes another prompt in."""
    told = serve(Continuous(8, 10), [(4, 4), (25, 2), (5, 2)], [0.0, 0.5, 0.5])
    assert told.scheduled == [
        {"0": 4},
        {"1": 10},
        {"1": 10},
        {"1": 5, "2": 5},
        {"0": 1, "1": 1, "2": 1},
        {"0": 1},
        {"0": 1},
    ]


def test_a_prompt_under_way_keeps_room_for_the_rest_of_it() -> None:
    """25 tokens at 10 a step: at the third it owns 5 blocks and will take 2 more; a prompt of 5 needs 2 besides."""
    policy = Continuous(8, 10)
    assert serve(policy, [(25, 1), (5, 1)], memory=Memory(10, 4)).column("scheduled_s") == [0.0, 2.0]
    assert serve(policy, [(25, 1), (5, 1)], memory=Memory(9, 4)).column("scheduled_s") == [0.0, 3.0]


def test_memory_that_grows_with_the_tokens() -> None:
    """Blocks of 4: 6 tokens are 2 blocks, the 9th token takes the third, and all come back at the end."""
    told = serve(WIDE, [(6, 5)])
    assert [1000 - free for free in told.steps("num_free_blocks")] == [2, 2, 2, 3, 3]
    assert told.steps("num_free_blocks_end")[-1] == 1000


def test_the_latest_gives_way_and_is_computed_again() -> None:
    """5 blocks of 4. Prompts of 7 take 2 each; in the second decode both need one more, and one is left.

    The later request loses its 8 tokens of KV, keeps its 2 tokens, and prefills 9 when the first has finished.
    """
    told = serve(WIDE, [(7, 6), (7, 6)], memory=Memory(6, 4))
    assert told.scheduled == [
        {"0": 7, "1": 7},
        {"0": 1, "1": 1},
        {"0": 1},
        {"0": 1},
        {"0": 1},
        {"0": 1},
        {"1": 9},
        {"1": 1},
        {"1": 1},
        {"1": 1},
    ]
    assert told.steps("preempted")[2] == ["1"]
    assert told.column("preemptions") == [0, 1]
    assert told.column("recomputed_tokens") == [0, 8]
    assert told.column("requeued_s") == [0.0, 4.0]
    assert told.column("last_token_s") == [6.0, 10.0]
    assert [5 - free for free in told.steps("num_free_blocks")] == [4, 4, 3, 3, 3, 3, 3, 3, 3, 3]


def test_several_give_way_and_return_in_their_order() -> None:
    """Six prompts of 3 in 6 blocks of 4; everybody needs a second block for the fifth token: three make room."""
    told = serve(WIDE, [(3, 6)] * 6, memory=Memory(7, 4))
    assert told.steps("preempted")[2] == ["5", "4", "3"]
    assert told.steps("waiting")[2] == ["3", "4", "5"]
    assert told.steps("running")[2] == ["0", "1", "2"]
    assert told.scheduled[6] == {"3": 5, "4": 5, "5": 5}
    assert told.column("last_token_s") == [6.0, 6.0, 6.0, 10.0, 10.0, 10.0]


def test_who_could_not_decode_once_is_not_let_in() -> None:
    """4 tokens fill the last block, and there is none for the next: the second waits instead of being thrown out."""
    told = serve(WIDE, [(2, 4), (4, 3)], memory=Memory(3, 4))
    assert told.column("scheduled_s") == [0.0, 4.0]
    assert told.column("preemptions") == [0, 0]
    alone = serve(WIDE, [(8, 1)], memory=Memory(3, 4))
    assert alone.column("last_token_s") == [1.0]


def test_nobody_passes_the_head() -> None:
    """The second is too long for what is free; the third would fit, and waits behind it."""
    told = serve(WIDE, [(8, 4), (12, 2), (1, 2)], memory=Memory(6, 4))
    assert told.column("scheduled_s") == [0.0, 4.0, 4.0]
