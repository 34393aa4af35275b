"""Plans and chunks that are made without their own constructors are what those would make."""

from __future__ import annotations

from typing import Any, cast

import pytest

from simulator.engine.in_flight import decodes, shape_of
from simulator.plan import Chunk, Holds, StepPlan
from simulator.policies.parts.plans import UNTIL_ARRIVAL, UNTIL_CHANGE, chunk_of, prefill_plan
from simulator.request import RequestView
from simulator.timing.cost import StepShape

REQUEST = cast("RequestView", object())


def same(one: tuple[Any, ...], other: tuple[Any, ...]) -> bool:
    return type(one) is type(other) and one == other


@pytest.mark.parametrize("decode", [True, False])
def test_a_step_with_prompts(decode: bool) -> None:
    chunk = chunk_of(REQUEST, 7)
    assert same(chunk, Chunk(REQUEST, 7))
    assert same(prefill_plan([chunk], decode=decode), StepPlan(prefill=(Chunk(REQUEST, 7),), decode=decode))


def test_steps_of_decodes_alone() -> None:
    assert [plan.holds for plan in (UNTIL_ARRIVAL, UNTIL_CHANGE)] == [Holds.ARRIVAL, Holds.CHANGE]
    assert UNTIL_ARRIVAL._replace(holds=Holds.STEP) == UNTIL_CHANGE._replace(holds=Holds.STEP) == StepPlan()


def test_the_shape_of_a_step() -> None:
    assert same(decodes(3, 40, (20, 600)), StepShape(3, 40, decode_longest=20, decode_squares=600))
    assert same(shape_of([], 3, 40, (20, 600)), decodes(3, 40, (20, 600)))
