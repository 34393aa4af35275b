"""The roofline of layers with a window: short contexts cost what they did, long ones what is seen of them."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.hardware.gpus import GPUS
from simulator.hardware.models import MODELS
from simulator.timing.cost import StepShape
from simulator.timing.formula_cost import Roofline, WindowedRoofline

GEMMA = MODELS["gemma-3-27b"]  # 52 of 62 layers see 1,024 tokens
PLAIN = Roofline(GEMMA, GPUS["l40s"], 4)
WINDOWED = WindowedRoofline(PLAIN)
ALL = WindowedRoofline(Roofline(replace(GEMMA, full_attention_layers=0, layer_types=""), GPUS["l40s"], 4))
shapes = st.builds(
    lambda seqs, each, chunk, behind: StepShape(
        seqs, seqs * each, 1, chunk, chunk + behind, chunk * behind + chunk * (chunk + 1) // 2
    ),
    st.integers(1, 256), st.integers(1, 60_000), st.integers(1, 8192), st.integers(0, 60_000),
)  # fmt: skip


def test_contexts_within_the_window_cost_what_they_did() -> None:
    shape = StepShape(64, 64 * 1024, 1, 512, 512, 512 * 513 // 2)
    assert WINDOWED.step_s(shape) == PLAIN.step_s(shape)


def test_layers_that_all_have_the_window_see_no_more() -> None:
    near, far = StepShape(64, 64 * 1024), StepShape(64, 64 * 50_000)
    assert ALL.step_s(far) == ALL.step_s(near)
    share = 52 / 62
    seconds = [PLAIN.step_s(each) for each in (near, far)]
    assert WINDOWED.step_s(far) == pytest.approx(share * seconds[0] + (1 - share) * seconds[1], rel=1e-6)


@given(shapes)
def test_a_window_never_costs_more_and_floors_lie_below(shape: StepShape) -> None:
    assert ALL.step_s(shape) <= WINDOWED.step_s(shape) <= PLAIN.step_s(shape)
    assert all(floor.s(shape) <= WINDOWED.step_s(shape) * (1 + 1e-9) for floor in WINDOWED.floors(16_384))


@given(st.integers(1, 256), st.integers(1, 3000), st.integers(1, 50))
def test_a_run_is_its_steps(seqs: int, each: int, repeat: int) -> None:
    shape = StepShape(seqs, seqs * each)
    assert WINDOWED.decode_run_s(shape, repeat) == [WINDOWED.step_s(shape.later(step)) for step in range(repeat)]
