from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.errors import InputError
from simulator.timing.arithmetic import PROMPT_COUNTS, find, prompt_counts
from simulator.timing.cost import CostModel, StepShape
from simulator.timing.profile import Options, ProfileCost
from simulator.timing.profile.prices import joint_us
from simulator.timing.profile.profile_cost import capture_sizes
from tests.profile_maker import apart, profile

COST = ProfileCost(profile())
LAYERS = 2


def decodes(contexts: list[int]) -> StepShape:
    squares = sum(context * context for context in contexts)
    return StepShape(len(contexts), sum(contexts), decode_longest=max(contexts), decode_squares=squares)


def prompt(tokens: int, cached: int = 0, chunks: int = 1, decoding: StepShape | None = None) -> StepShape:
    pairs = chunks * (tokens * cached + tokens * (tokens + 1) // 2)
    given = decoding or StepShape(0, 0)
    return given._replace(
        prefill_seqs=chunks,
        prefill_tokens=chunks * tokens,
        prefill_context=chunks * (tokens + cached),
        prefill_pairs=pairs,
        prefill_longest=tokens + cached,
    )


def test_it_is_a_cost_model() -> None:
    cost: CostModel = COST
    assert cost.step_s(StepShape(0, 0)) == 0.0


@given(st.lists(st.integers(1, 60_000), min_size=1, max_size=40), st.integers(1, 600))
def test_a_run_is_its_steps_to_the_bit(contexts: list[int], repeat: int) -> None:
    shape = decodes(contexts)
    run = COST.decode_run_s(shape, repeat)
    assert run == [COST.step_s(shape.later(step)) for step in range(repeat)]
    assert all(type(step) is float for step in run)


def test_a_step_of_decodes_is_the_sum_of_its_kernels() -> None:
    made = profile(skew=None)
    cost = ProfileCost(made)
    seqs, context = 8, 256  # a cell of the table, and a captured size
    experts = made.experts
    assert experts is not None
    assert made.all_reduce is not None
    us = LAYERS * (52.0 + made.layer_curves["norm"].at(8) + made.attention.decode.us(seqs, context) + experts.us(8))
    us += made.step_curves["embedding"].at(8) + made.row_curves["lm_head"].at(8) + made.all_reduce.at(8)
    assert cost.step_s(StepShape(seqs, seqs * context)) == pytest.approx(us * 1e-6 + 1e-4 + 8e-6)


def test_unequal_contexts_cost_more() -> None:
    even, uneven = decodes([500] * 16), decodes([300] * 15 + [3500])
    assert even.decode_context == uneven.decode_context
    assert COST.step_s(uneven) > COST.step_s(even)
    assert ProfileCost(profile(), Options(skew=False)).step_s(uneven) == COST.step_s(even)
    mixed = prompt(100, decoding=uneven)
    assert COST.step_s(mixed) > COST.step_s(prompt(100, decoding=even))


def test_the_extra_of_two_lengths_is_the_tables() -> None:
    skew = COST.profile.skew
    assert skew is not None
    contexts = [100] * 18 + [1100] * 2  # a tenth of them long, on the axis; 32 decodes are the table's last row
    shape = decodes(contexts)
    row, share = find(skew.seqs.knots, 20)
    at_a_tenth = 0.02 + share * (0.01 - 0.02)
    assert row == 0
    assert skew.us(shape) == pytest.approx(at_a_tenth * (1100 - 200), rel=1e-6)


def test_batches_are_padded_to_captured_sizes() -> None:
    assert capture_sizes(300) == [1, 2, 4, *range(8, 256, 8), 256, 272, 288]
    assert capture_sizes(3) == [1, 2]
    assert [COST.padded(n) for n in (1, 3, 4, 5, 9, 250, 257, 512, 513)] == [1, 4, 4, 8, 16, 256, 272, 512, 513]
    eager = ProfileCost(profile(), Options(cuda_graphs=False))
    assert eager.padded(257) == 257


def test_options_replace_what_they_name() -> None:
    shape = prompt(100)
    assert ProfileCost(profile(), Options(host_s=0.5)).step_s(shape) == pytest.approx(COST.step_s(shape) - 1e-4 + 0.5)
    busy = ProfileCost(profile(), Options(host_per_seq_s=1e-3))
    rows_s = 8 * (1e-3 - 1e-6)
    assert busy.step_s(StepShape(8, 800)) == pytest.approx(COST.step_s(StepShape(8, 800)) + rows_s)
    reduce = COST.profile.all_reduce
    assert reduce is not None
    without = ProfileCost(profile(), Options(all_reduce=False)).step_s(shape)
    assert COST.step_s(shape) - without == pytest.approx(reduce.at(104) * 1e-6)
    with pytest.raises(InputError, match="host_s must be 0 or more"):
        ProfileCost(profile(), Options(host_s=-1.0))


def test_prompts_measured_apart_are_added_to_decodes_with_one_launch() -> None:
    attention = profile(attention=apart()).attention
    decoding = decodes([300] * 8)
    alone = joint_us(attention, prompt(200))
    together = joint_us(attention, prompt(200, decoding=decoding))
    assert together == pytest.approx(alone + attention.decode.us(8, 300.0) - attention.launch_us)
    slower = joint_us(profile(attention={**apart(), "beside": 2.0}).attention, prompt(200, decoding=decoding))
    assert slower - together == pytest.approx(together - alone)


def test_counts_of_a_step_with_prompts() -> None:
    found = dict(zip(PROMPT_COUNTS, prompt_counts(2, 600, 90_000.0, 500, 8, 1000.0, 8000.0), strict=True))
    # Three tiles of 128 for the 300 tokens of a chunk, for each of ten sequences.
    assert found["tiles"] == 10 * 3
    assert (found["keys"], found["chain"], found["pairs"]) == (8000.0, 1000.0, 90_000)
    assert found["missed"] == 4000.0
    missed = PROMPT_COUNTS.index("missed")
    assert prompt_counts(1, 16, 100.0, 16, 8, 1000.0, 20_000.0)[missed] == 0.0
    assert prompt_counts(1, 16, 100.0, 16, 8, 1000.0, 5000.0)[missed] == 8000.0


def test_counts_of_prompts_alone() -> None:
    found = dict(zip(PROMPT_COUNTS, prompt_counts(2, 600, 90_000.0, 500), strict=True))
    none = dict.fromkeys(("seqs", "keys", "missed"), 0)
    assert found == {**none, "pairs": 90_000, "tokens": 600, "tiles": 2 * 3, "chain": 500}


def test_a_chunk_at_a_cell_costs_what_was_measured_there() -> None:
    attention = profile().attention
    surface = attention.prompt.surface
    shape = prompt(256, cached=128, decoding=decodes([1024] * 8))
    places = [np.array([value]) for value in (256.0, 128.0, 8.0, 1024.0)]
    correction = float(surface.corrections(places)[0])
    assert correction == pytest.approx(surface.correction[12 + 6 + 2 + 1])
    assert joint_us(attention, shape) > 0


@given(st.integers(1, 2000), st.integers(0, 4000), st.integers(1, 6), st.integers(0, 100))
def test_more_prompt_never_costs_much_less(tokens: int, cached: int, chunks: int, more: int) -> None:
    less, larger = COST.step_s(prompt(tokens, cached, chunks)), COST.step_s(prompt(tokens + more, cached, chunks))
    assert larger > 0.85 * less


def rows(**columns: list[int]) -> Any:
    names = ("prefill_tokens", "decoding", "held", "context_tokens", "repeat", "tokens")
    size = len(next(iter(columns.values())))
    return SimpleNamespace(**{name: np.array(columns.get(name, [0] * size)) for name in names})


def test_steps_outside_of_the_tables_are_counted() -> None:
    covered = COST.profile.covered()
    assert covered == {"tokens": 2048, "seqs": 64, "context": 4096}
    table = rows(
        decoding=[4, 2, 100, 0], context_tokens=[400, 2 * 4090, 100, 3000], repeat=[9, 10, 3, 1],
        prefill_tokens=[0, 0, 0, 3000], tokens=[4, 2, 100, 3000],
    )  # fmt: skip
    (remark,) = COST.remarks(table)
    # Of the ten, those at 4090 to 4096 are within.
    assert remark.startswith("warning: 7 of 23 steps lie outside of what tiny measured")
    assert "3 with more than 4,096 as a mean context" in remark
    assert "3 with more than 64 decodes" in remark
    assert "1 with more than 2,048 tokens" in remark
    assert COST.remarks(rows(decoding=[4], context_tokens=[400], repeat=[9], tokens=[4])) == ()


def test_equal_profiles_are_equal_costs() -> None:
    assert replace(COST) == COST


def test_a_step_with_prompts_takes_as_long_as_its_kernels_take_to_launch() -> None:
    """Unless graphs hold it: with few tokens, or of decodes alone."""
    launched = ProfileCost(profile(), Options(layer_launch_s=0.5, launched_above=64))
    few, many = prompt(64), prompt(65)
    assert launched.step_s(few) == COST.step_s(few) < 1.0
    assert launched.step_s(many) == 0.5 * LAYERS > COST.step_s(many)
    assert launched.step_s(decodes([100] * 65)) == COST.step_s(decodes([100] * 65))
    quick = ProfileCost(profile(), Options(layer_launch_s=1e-9))
    assert quick.step_s(many) == COST.step_s(many)


def test_prompts_of_an_older_server_take_so_many_times_their_share_of_a_step() -> None:
    older = ProfileCost(profile(), Options(prompt_times=1.5))
    assert older.step_s(prompt(64)) == pytest.approx(1.5 * COST.step_s(prompt(64)))
    mixed = prompt(48, decoding=decodes([300] * 16))
    assert older.step_s(mixed) == pytest.approx((1.0 + 0.5 * 48 / 64) * COST.step_s(mixed))
    assert older.step_s(decodes([300] * 16)) == COST.step_s(decodes([300] * 16))
