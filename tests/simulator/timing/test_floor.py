"""Straight lines below cost models: nowhere above them, and close where bounds rest on them."""

from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scenarios.assembly.replica_parts import build
from scenarios.schema.loader import load
from simulator.timing.cost import MOST_LINES, CostModel, StepShape, floors_of, lines_below
from simulator.timing.formula_cost import Linear
from tests.examples import examples

points = st.lists(
    st.tuples(st.integers(1, 5_000), st.floats(1e-6, 10.0, allow_nan=False)), min_size=1, max_size=30
).map(lambda pairs: sorted(dict(pairs).items()))


@given(points)
@examples(600)
def test_lines_lie_below_all_points_and_touch_them(pairs: list[tuple[int, float]]) -> None:
    x = np.array([count for count, _ in pairs], dtype=np.float64)
    y = np.array([seconds for _, seconds in pairs])
    lines = lines_below(x, y)
    assert lines[0] == (y.min(), 0.0)
    assert lines[-1] == (0.0, (y / x).min())
    assert len(lines) <= MOST_LINES + 3
    for level, slope in lines:
        assert level >= 0
        assert slope >= 0
        apart = y - (level + slope * x)
        assert apart.min() >= -1e-12 * y.max()
        assert apart.min() <= 1e-9 * y.max()


def test_the_line_of_a_straight_cost_is_the_cost() -> None:
    cost = Linear(2e-3, 1e-5, 1e-8)
    shape = StepShape(7, 4_000, 2, 300, 900, 60_000)
    (floor,) = floors_of(cost, 512)
    assert floor.s(shape) == pytest.approx(cost.step_s(shape))


def test_a_model_that_says_nothing_has_no_floor() -> None:
    untold: Any = object()
    assert floors_of(untold, 512) == []


# A profile of one GPU, kernel tables of another, datasheets of a mixture of experts; each with the host of its server.
SCENARIOS: dict[str, str | dict[str, Any]] = {
    "profile": "quickstart",
    "tables": {
        "model": "llama-3.1-70b",
        "hardware": {"gpu": "h100", "tensor_parallel": 4},
        "cost": {"kind": "profile"},
    },
    "roofline": {
        "model": "mixtral-8x7b",
        "hardware": {"gpu": "h200", "tensor_parallel": 2},
        "cost": {"kind": "roofline"},
    },
}
CHAT = {"name": "chat", "workload": {"preset": "chat", "requests": 10, "rate": 1}, "engine": {"policy": "vllm"}}


@cache
def cost_of(kind: str) -> CostModel:
    scenario = SCENARIOS[kind]
    return build(load(scenario if isinstance(scenario, str) else {**CHAT, **scenario})).cost


@st.composite
def shapes(draw: st.DrawFn, most_tokens: int) -> StepShape:
    """A step of decodes and chunks with at most so many tokens."""
    contexts = draw(st.lists(st.sampled_from([1, 17, 300, 4_000, 60_000]), max_size=min(most_tokens, 40)))
    times = draw(st.integers(1, most_tokens // max(1, len(contexts))))
    decodes, context = len(contexts) * times, sum(contexts) * times
    left = most_tokens - decodes
    chunks: list[tuple[int, int]] = []
    for _ in range(draw(st.integers(0, 4))):
        if left > 0:
            tokens = draw(st.integers(1, left))
            chunks.append((tokens, draw(st.sampled_from([0, 10, 5_000, 100_000]))))
            left -= tokens
    if not decodes and not chunks:
        decodes = context = 1
        contexts = [1]
    return StepShape(
        decodes,
        context,
        len(chunks),
        sum(tokens for tokens, _ in chunks),
        sum(tokens + behind for tokens, behind in chunks),
        sum(tokens * behind + tokens * (tokens + 1) // 2 for tokens, behind in chunks),
        max(contexts, default=0),
        sum(each * each for each in contexts) * times,
        max((tokens + behind for tokens, behind in chunks), default=0),
    )


@pytest.mark.parametrize("kind", SCENARIOS)
@given(data=st.data())
@examples(300)
def test_no_step_is_cheaper_than_its_floors(kind: str, data: st.DataObject) -> None:
    cost, most = cost_of(kind), data.draw(st.sampled_from([64, 2_048]))
    seconds = cost.step_s(shape := data.draw(shapes(most)))
    floors = floors_of(cost, most)
    assert floors
    for floor in floors:
        assert min(floor) >= 0
        assert floor.s(shape) <= seconds * (1 + 1e-9)


@pytest.mark.parametrize("kind", SCENARIOS)
def test_a_floor_is_close_for_one_decode_alone(kind: str) -> None:
    """Weights and launches, which a decode alone pays in full: bounds of single requests rest on it."""
    cost, shape = cost_of(kind), StepShape(1, 300, decode_longest=300, decode_squares=90_000)
    assert max(floor.s(shape) for floor in floors_of(cost, 2_048)) > 0.9 * cost.step_s(shape)
