"""Static batching by hand."""

import numpy as np
import pytest

from simulator.metrics.summary import summarize
from simulator.policies.static import Static
from simulator.results.records import Status
from simulator.timing.formula_cost import Linear
from tests.hand import serve
from tests.laws.scenarios import Memory

AT_ONCE = Static(max_num_seqs=8, max_num_batched_tokens=64, batch_timeout_s=0.0)


def test_the_longest_keeps_everybody() -> None:
    """Answers of 1000, 200 and 400 tokens: 1000 steps, and 800 + 600 of 3000 slot-steps computed for nobody."""
    told = serve(AT_ONCE, [(4, 1000), (4, 200), (4, 400)])
    records = told.records
    assert records.num_steps == 1000
    rows = records.rows
    assert np.dot(rows.running, rows.repeat) == 3000
    assert np.dot(rows.held, rows.repeat) == 1400
    summary = summarize(records)
    assert summary["wasted_slot_fraction"] == pytest.approx(1400 / 3000)
    assert summary["mean_batch_size"] == pytest.approx(1600 / 1000)
    assert told.column("last_token_s") == [1000.0, 200.0, 400.0]
    assert told.column("released_s") == [1000.0] * 3
    assert told.steps("finished")[199] == ["1"]


def test_the_finished_compute_on() -> None:
    """A held request costs a token a step, and its context grows like any other."""
    told = serve(AT_ONCE, [(4, 6), (4, 2)], cost=Linear(1.0, 0.5, 0.25))
    rows = told.records.rows
    assert rows.tokens.tolist() == [8, 2, 2]
    assert rows.padded_tokens.tolist() == [0, 0, 1]
    assert rows.held.tolist() == [0, 0, 1]
    assert rows.decoding.tolist() == [0, 2, 1]
    assert rows.context_tokens.tolist() == [8, 10, 12]
    seconds = [1 + 0.5 * 8 + 0.25 * 8] + [1 + 0.5 * 2 + 0.25 * context for context in (10, 12, 14, 16, 18)]
    assert told.records.step_end_s.tolist() == np.cumsum(seconds).tolist()
    assert told.scheduled[2] == {"0": 1}, "what a held request computes is nobody's token"


def test_prompts_are_padded_to_the_longest() -> None:
    told = serve(AT_ONCE, [(5, 2), (9, 2), (2, 2)], cost=Linear(1.0, 0.5))
    rows = told.records.rows
    assert rows.tokens.tolist() == [27, 3]
    assert rows.padded_tokens.tolist() == [11, 0]
    assert rows.prefill_tokens.tolist() == [16, 0]
    assert rows.context_tokens.tolist() == [27, 30]
    assert told.scheduled[0] == {"0": 5, "1": 9, "2": 2}
    assert told.records.step_end_s.tolist() == [14.5, 17.0]
    assert summarize(told.records)["padding_fraction"] == pytest.approx(11 / 30)


def test_memory_is_reserved_for_the_longest() -> None:
    """Longest prompt 9 and largest max_tokens 12: 21 tokens are 6 blocks of 4 for each of three, from start to end."""
    told = serve(AT_ONCE, [(5, 2), (9, 2), (2, 3)], max_tokens=12)
    assert told.steps("num_free_blocks") == [1000 - 18] * 3
    assert told.steps("num_free_blocks_end") == [1000 - 18, 1000 - 18, 1000]


def test_the_next_batch_waits_for_the_last_of_this() -> None:
    told = serve(Static(2, 64, 0.0), [(4, 5), (4, 2), (4, 2), (4, 2)])
    assert told.column("scheduled_s") == [0.0, 0.0, 5.0, 5.0]
    assert told.steps("admitted")[5] == {"2": 0, "3": 0}
    assert told.column("last_token_s") == [5.0, 2.0, 7.0, 7.0]


def test_a_batch_forms_when_it_is_full() -> None:
    """Two slots: full with the second arrival, at 0.25 s and not at the timeout."""
    told = serve(Static(2, 64, 0.5), [(4, 2)] * 3, [0.0, 0.25, 0.3])
    assert told.column("scheduled_s") == [0.25, 0.25, 2.25]


def test_a_batch_forms_when_its_oldest_has_waited_enough() -> None:
    """0.5 s after the oldest came, with whoever is there by then, those of that very moment included."""
    told = serve(Static(8, 64, 0.5), [(4, 2)] * 4, [1.0, 1.25, 1.5, 1.75])
    assert told.column("scheduled_s") == [1.5, 1.5, 1.5, 3.5]


def test_the_timeout_counts_from_the_arrival_not_from_the_end_of_the_batch() -> None:
    """While a batch runs the next one's oldest waits: at its end it has waited 1.5 s of 1.75, and goes 0.25 s later."""
    told = serve(Static(8, 64, 1.75), [(4, 2)] * 2, [0.0, 2.25])
    assert told.column("scheduled_s") == [1.75, 4.0]


def test_answers_that_come_back_together() -> None:
    """Without streaming nobody has a token before the batch returns, and there are no gaps between tokens."""
    told = serve(Static(8, 64, 0.0, stream=False), [(4, 5), (4, 2), (4, 1)])
    for times in ("first_token_s", "last_token_s", "released_s"):
        assert told.column(times) == [5.0] * 3
    assert told.column("output_tokens") == [5, 2, 1]
    assert len(told.records.gaps.gap_s) == 0
    summary = summarize(told.records)
    assert summary["mean_tpot_ms"] is None
    assert summary["mean_itl_ms"] is None
    assert summary["mean_ttft_ms"] == summary["mean_e2el_ms"] == 5000.0


def test_answers_that_stream() -> None:
    told = serve(AT_ONCE, [(4, 5), (4, 2), (4, 1)])
    assert told.column("first_token_s") == [1.0] * 3
    assert told.column("last_token_s") == [5.0, 2.0, 1.0]
    assert told.column("released_s") == [5.0] * 3


def test_a_batch_of_answers_of_one_token() -> None:
    """Everything is done with the prompts: slots and memory come free at once."""
    told = serve(Static(2, 64, 0.0), [(4, 1)] * 3)
    assert told.scheduled == [{"0": 4, "1": 4}, {"2": 4}]
    assert told.records.rows.held.tolist() == [0, 0]
    assert told.column("released_s") == [1.0, 1.0, 2.0]


def test_memory_bounds_the_batch() -> None:
    """Reserving 4 blocks each of 9, two fit; the timeout does not matter, as a third could not come in anyway."""
    told = serve(Static(8, 64, 100.0), [(8, 8)] * 3 + [(1, 1)], [0.0, 0.25, 0.5, 0.75], memory=Memory(10, 4))
    # The last two together reserve for the longest prompt of theirs: 4 blocks each.
    assert told.column("scheduled_s") == [0.5, 0.5, 100.5, 100.5]
    assert told.steps("num_free_blocks")[0] == 1


def test_a_long_prompt_behind_makes_a_batch_full() -> None:
    """Who comes next would make everybody's reservation too large: the batch goes without it, at once."""
    told = serve(Static(8, 64, 100.0), [(4, 4), (4, 4), (28, 4)], [0.0, 0.25, 0.5], memory=Memory(13, 4))
    assert told.column("scheduled_s") == [0.5, 0.5, 100.5]


def test_prompts_beyond_the_budget_take_several_steps() -> None:
    """Padded to 10 each, 16 tokens a step: 10 + 6, 4 + 10, 2 and so on; nobody decodes before the last has begun."""
    told = serve(Static(8, 16, 0.0), [(10, 3), (10, 3), (7, 3)])
    rows = told.records.rows
    assert rows.tokens.tolist() == [16, 14, 3]
    assert rows.prefilling.tolist() == [2, 2, 0]
    assert told.scheduled[:2] == [{"0": 10, "1": 6}, {"1": 4, "2": 7}]
    assert told.column("first_token_s") == [1.0, 2.0, 2.0]
    assert told.column("last_token_s") == [4.0, 4.0, 4.0]
    assert told.steps("admitted")[:2] == [{"0": 0, "1": 0, "2": 0}, {}]


def test_a_prompt_longer_than_the_budget() -> None:
    told = serve(Static(8, 16, 0.0), [(40, 2), (4, 2)])
    assert [step.get("0", 0) for step in told.scheduled] == [16, 16, 8, 0, 0, 1]
    # The other one's 36 tokens of padding come before its prompt.
    assert [step.get("1", 0) for step in told.scheduled] == [0, 0, 0, 0, 4, 1]
    assert told.records.rows.padded_tokens.tolist() == [0, 0, 8, 16, 12, 0]


def test_no_more_slots_than_tokens() -> None:
    """A decode step computes a token a slot: the budget bounds the batch."""
    told = serve(Static(8, 3, 0.0), [(1, 4)] * 5)
    assert max(len(running) for running in told.steps("running")) == 3
    assert told.column("scheduled_s") == [0.0, 0.0, 0.0, 4.0, 4.0]


def test_whoever_cannot_be_reserved_for_is_refused() -> None:
    """17 tokens would do for the answer, and 40 may be asked for: 12 blocks, and there are 8."""
    told = serve(AT_ONCE, [(10, 8), (10, 8)], max_tokens=38, memory=Memory(9, 4))
    assert told.column("status") == [Status.REJECTED] * 2
    assert told.records.reject_reasons[0] == "10 input tokens and max_tokens = 38 reserve 12 KV blocks; there are 8"
    assert serve(AT_ONCE, [(10, 8)], max_tokens=22, memory=Memory(9, 4)).column("status") == [Status.FINISHED]
