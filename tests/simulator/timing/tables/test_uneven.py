"""What unequal contexts add where none were measured: nothing for equal ones, the wait for a last block for others."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from simulator.hardware.gpus import find_gpu
from simulator.hardware.models import MODELS
from simulator.timing.cost import StepShape
from simulator.timing.profile import Options, ProfileCost
from simulator.timing.tables import compose, load_tables, parts_of
from simulator.timing.tables.attention import ALONE, CHIPS, Chip, alone, estimated_skew, two_lengths
from tests import tables_maker as maker

KEY_US = 0.005


def shape(contexts: list[int], prompt: int = 0) -> StepShape:
    """Decodes of these contexts, beside a prompt of so many tokens."""
    squares = sum(context**2 for context in contexts)
    pairs = prompt * (prompt + 1) // 2
    return StepShape(
        len(contexts), sum(contexts), int(prompt > 0), prompt, prompt, pairs, max(contexts), squares, prompt
    )


def extra_us(contexts: list[int], prompt: int = 0, gpu: str = "rtx-4090") -> float:
    skew = estimated_skew(gpu, 32, 8, KEY_US, 2.0)
    assert skew is not None
    return skew.us(shape(contexts, prompt))


def test_equal_contexts_add_nothing() -> None:
    for prompt in (0, 512):
        assert extra_us([1000] * 64, prompt) == 0.0


def test_one_block_after_the_others_reads_by_itself() -> None:
    """A place each, one long: its last three quarters run at the speed of a block alone, less what it shared anyway."""
    chip = Chip(sms=16)
    ends, late = two_lengths(16, 1, 1, 1, chip)
    mean = 19.0 / 16.0
    work = (4.0 - 1.0) / (4.0 - mean)  # keys by itself, per key of (longest - mean)
    assert len(ends.unequal) == len(ends.equal) == 16
    assert alone(ends, 1.0) == pytest.approx((4.0 - mean) / (4.0 - mean))  # nobody gains from having the memory alone
    assert alone(ends, 1e-9) == pytest.approx(0.0, abs=1e-9)  # bandwidth alone: the sum of the keys counts
    assert alone(ends, 0.5) == pytest.approx((1.0 + 0.5 * 3.0 - mean) / (4.0 - mean))
    assert late == pytest.approx(1.0)
    assert work > 1.0


def test_a_batch_that_is_split_waits_for_nobody() -> None:
    whole = CHIPS["rtx-4090"].least_whole(8)
    assert whole == 26  # 0.8 x 2 x 128 multiprocessors, 8 KV heads
    assert extra_us([4000] + [1000] * (whole - 2)) == 0.0
    assert extra_us([4000] + [1000] * (whole - 1)) > 0.0
    assert extra_us([4000] + [1000] * 7, prompt=256) > 0.0, "beside a prompt nothing is split"


def test_the_extra_grows_with_the_longest_and_is_that_of_its_keys() -> None:
    extras = [extra_us([longest] + [1000] * 63) for longest in (1000, 2000, 4000, 8000)]
    assert all(low < high for low, high in pairwise(extras))
    block_us = KEY_US * 128 / 8
    assert extras[-1] < 8000 * block_us
    assert extras[-1] > 0.2 * ALONE * 7000 * block_us


def test_other_attention_is_not_estimated() -> None:
    assert estimated_skew("h100", 32, 8, KEY_US, 1.0) is None
    assert estimated_skew("mi300x", 32, 8, KEY_US, 1.0) is None


@pytest.mark.parametrize(
    ("gpu", "words"),
    [
        ("a100-80gb", "estimated (thread blocks listed over the multiprocessors)"),
        ("h100", "estimated (nothing: FlashAttention 3 splits the long ones)"),
        ("b200", "assumed (nothing: how this GPU's attention lists them is not known)"),
    ],
)
def test_a_composed_model_says_what_unequal_contexts_cost(gpu: str, words: str) -> None:
    tables = replace(load_tables(maker.document()), gpu=gpu)
    profile = compose(tables, replace(MODELS["llama-3.1-8b"], layers=4), find_gpu(gpu), 1)
    assert f"unequal contexts: {words}" in list(map(str, parts_of(profile)))
    cost = ProfileCost(profile, Options(host_s=0.0))
    for prompt in (0, 300):
        unequal, equal = shape([8000] + [1000] * 63, prompt), shape([1109] * 48 + [1110] * 16, prompt)
        more = cost.step_s(unequal) - cost.step_s(equal)
        assert more == pytest.approx(0.0, abs=1e-5) if profile.skew is None else more > 1e-5


def test_a_run_of_decodes_is_its_steps() -> None:
    tables = replace(load_tables(maker.document()), gpu="a100-80gb")
    cost = ProfileCost(compose(tables, replace(MODELS["llama-3.1-8b"], layers=4), find_gpu("a100-80gb"), 1))
    first = shape([8000] + [1000] * 63)
    assert cost.decode_run_s(first, 40) == [cost.step_s(first.later(i)) for i in range(40)]
    assert np.isfinite(cost.decode_run_s(first, 1)).all()
