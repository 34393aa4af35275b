"""vLLM's token budget by hand. Its own scheduler is followed step by step in tests/parity."""

import pytest

from simulator.policies.chunked_prefill import ChunkedPrefill
from tests.hand import serve
from tests.laws.scenarios import Memory

EIGHT = ChunkedPrefill(max_num_seqs=8, max_num_batched_tokens=8)


def test_decodes_and_chunks_share_the_budget() -> None:
    """8 tokens a step. The third has 8 - 2 decodes = 6 for its prompt of 9, then 3; the fourth gets what is left."""
    told = serve(EIGHT, [(3, 6), (4, 6), (9, 2), (5, 2)], [0.0, 0.0, 0.5, 0.5])
    assert told.scheduled == [
        {"0": 3, "1": 4},
        {"0": 1, "1": 1, "2": 6},
        {"0": 1, "1": 1, "2": 3, "3": 3},
        {"0": 1, "1": 1, "2": 1, "3": 2},
        {"0": 1, "1": 1, "3": 1},
        {"0": 1, "1": 1},
    ]
    assert told.column("first_token_s") == [1.0, 1.0, 3.0, 4.0]
    assert told.column("last_token_s") == [6.0, 6.0, 4.0, 5.0]


def test_a_prompt_beyond_the_budget() -> None:
    """20 tokens: 8, 8, 4; the next prompt fills the third step, and its last chunk comes beside the first's decode."""
    told = serve(EIGHT, [(20, 3), (6, 2)])
    assert told.scheduled == [{"0": 8}, {"0": 8}, {"0": 4, "1": 4}, {"0": 1, "1": 2}, {"0": 1, "1": 1}]


def test_blocks_are_taken_chunk_by_chunk() -> None:
    told = serve(EIGHT, [(20, 3)])
    assert [1000 - free for free in told.steps("num_free_blocks")] == [2, 4, 5, 6, 6]


def test_the_threshold_cuts_prompts_of_those_who_are_not_alone() -> None:
    """At most 3 tokens of a prompt in a step, two prompts side by side; who is alone takes the whole budget."""
    policy = ChunkedPrefill(8, 8, long_prefill_token_threshold=3)
    assert serve(policy, [(16, 1)]).scheduled == [{"0": 8}, {"0": 8}]
    assert serve(policy, [(7, 1), (5, 1)]).scheduled == [{"0": 3, "1": 3}, {"0": 3, "1": 2}, {"0": 1}]


def test_without_chunks_a_prompt_is_computed_whole() -> None:
    """The second waits for a step with room for all of it, and the third behind it."""
    policy = ChunkedPrefill(8, 12, enable_chunked_prefill=False)
    told = serve(policy, [(7, 3), (6, 2), (1, 2)])
    assert told.scheduled == [{"0": 7}, {"0": 1, "1": 6, "2": 1}, {"0": 1, "1": 1, "2": 1}]


def test_a_prompt_is_let_in_when_all_of_it_would_fit() -> None:
    """5 blocks, 2 of them taken. 20 tokens do not fit, though a first chunk would; unless only that is asked."""
    lengths = [(6, 3), (16, 2)]
    told = serve(ChunkedPrefill(8, 8), lengths, memory=Memory(6, 4))
    assert told.column("scheduled_s") == [0.0, 3.0]
    eager = serve(ChunkedPrefill(8, 8, reserve_full_isl=False), lengths, memory=Memory(6, 4))
    assert eager.column("scheduled_s") == [0.0, 0.0]


def test_the_test_is_no_reservation() -> None:
    """Of 7 blocks the first takes 4 and the second, of 12 tokens, just one for its 4 of this step.

    In the next the first takes a fifth, the second wants two more and finds one: it gives way itself.
    """
    told = serve(ChunkedPrefill(8, 20), [(16, 4), (12, 2)], memory=Memory(8, 4))
    assert told.scheduled == [{"0": 16, "1": 4}, {"0": 1}, {"0": 1}, {"0": 1}, {"1": 12}, {"1": 1}]
    assert told.steps("preempted")[1] == ["1"]
    assert told.column("recomputed_tokens") == [0, 4]


def test_the_watermark_keeps_blocks_free_while_others_run() -> None:
    """A tenth of 21 blocks are 2: with 14 of 20 taken, 4 may be given away, and 5 not; an idle server gives all."""
    policy = ChunkedPrefill(8, 100, watermark=0.1)
    memory = Memory(21, 4)
    assert serve(policy, [(56, 2), (16, 2)], memory=memory).column("scheduled_s") == [0.0, 0.0]
    assert serve(policy, [(56, 2), (17, 2)], memory=memory).column("scheduled_s") == [0.0, 2.0]
    assert serve(policy, [(77, 2)], memory=memory).column("scheduled_s") == [0.0]


def test_the_latest_gives_way() -> None:
    """5 blocks of 4, as under continuous batching; the rest of the step goes on without it, and nobody is let in."""
    told = serve(ChunkedPrefill(8, 64), [(7, 6), (7, 6), (1, 1)], [0.0, 0.0, 1.5], memory=Memory(6, 4))
    assert told.scheduled[:4] == [{"0": 7, "1": 7}, {"0": 1, "1": 1}, {"0": 1}, {"0": 1}]
    assert told.steps("preempted")[2] == ["1"]
    assert told.steps("waiting")[2] == ["1", "2"]
    assert told.column("recomputed_tokens") == [0, 8, 0]
    assert told.column("last_token_s")[0] == 6.0


def test_recomputed_in_chunks_beside_the_decodes() -> None:
    """What a victim lost is an ordinary prefill of prompt and output when there is room again: 9 tokens, 7 + 2."""
    told = serve(EIGHT, [(7, 7), (7, 8)], memory=Memory(6, 4))
    victim = [(step, tokens["1"]) for step, tokens in enumerate(told.scheduled) if "1" in tokens]
    lost = told.column("recomputed_tokens")[1]
    assert told.column("preemptions") == [0, 1]
    assert sum(tokens for _, tokens in victim) == 7 + 8 - 1 + lost
    assert told.column("output_tokens") == [7, 8]


def test_priority_order() -> None:
    """One slot: the smallest number first, ties by arrival; nobody who runs is displaced while there is memory."""
    policy = ChunkedPrefill(1, 8, order="priority")
    told = serve(policy, [(4, 3)] * 5, [0.0, 0.5, 0.5, 0.5, 1.5], priority=[5, 2, 1, 2, 0])
    assert told.column("scheduled_s") == [0.0, 9.0, 6.0, 12.0, 3.0]
    assert told.column("preemptions") == [0] * 5


def test_the_least_important_gives_way() -> None:
    """By priority the victim is not the latest, but the one of the largest number."""
    policy = ChunkedPrefill(8, 64, order="priority")
    told = serve(policy, [(7, 6), (7, 6)], priority=[1, 0], memory=Memory(6, 4))
    assert told.column("preemptions") == [1, 0]
    assert told.column("last_token_s") == [10.0, 6.0]


@pytest.mark.parametrize("order", ["fcfs", "priority"])
def test_slots(order: str) -> None:
    told = serve(ChunkedPrefill(2, 64, order=order), [(4, 3)] * 5)
    assert told.column("scheduled_s") == [0.0, 0.0, 3.0, 3.0, 6.0]
