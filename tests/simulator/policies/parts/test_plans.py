"""Plans and chunks that are made without their own constructors are what those would make."""

import ast
from pathlib import Path
from typing import Any, cast

import pytest

from simulator.engine.in_flight import decodes, shape_of
from simulator.plan import Chunk, Holds, Preemption, StepPlan
from simulator.policies.parts.plans import UNTIL_ARRIVAL, UNTIL_CHANGE, chunk_of, step_plan
from simulator.request import RequestView
from simulator.timing.cost import StepShape

REQUEST = cast("RequestView", object())
ROOT = Path(__file__).parents[4]


def same(one: tuple[Any, ...], other: tuple[Any, ...]) -> bool:
    return type(one) is type(other) and one == other


def test_a_chunk() -> None:
    assert same(chunk_of(REQUEST, 7), Chunk(REQUEST, 7))


def test_a_plan_has_the_fields_and_defaults_of_its_constructor() -> None:
    assert same(step_plan(), StepPlan())
    others: dict[str, Any] = {"decode": False, "more": True, "withheld": True}
    others |= dict.fromkeys(("resume", "paused", "tried", "to_end", "requeue"), (REQUEST,))
    others |= {"preempt": (Preemption(REQUEST),), "prefill": (Chunk(REQUEST, 7),), "holds": Holds.CHANGE}
    others |= {"wait_until_s": 2.5, "note": "kept", "hold_steps": 3}
    assert others.keys() == set(StepPlan._fields)
    for name, other in others.items():
        assert same(step_plan(**{name: other}), StepPlan(**{name: other})), name


@pytest.mark.parametrize("room", ["simulator", "scenarios", "tests"])
def test_plans_are_made_by_the_names_of_their_fields(room: str) -> None:
    found = []
    for path in (ROOT / room).rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        for node in ast.walk(ast.parse(text)) if "StepPlan(" in text else ():
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "StepPlan" and node.args:
                found.append(f"{path}:{node.lineno}")
    assert found == []


def test_steps_of_decodes_alone() -> None:
    assert [plan.holds for plan in (UNTIL_ARRIVAL, UNTIL_CHANGE)] == [Holds.ARRIVAL, Holds.CHANGE]
    assert UNTIL_ARRIVAL._replace(holds=Holds.STEP) == UNTIL_CHANGE._replace(holds=Holds.STEP) == StepPlan()


def test_the_shape_of_a_step() -> None:
    assert same(decodes(3, 40, (20, 600)), StepShape(3, 40, decode_longest=20, decode_squares=600))
    assert same(shape_of([], 3, 40, (20, 600)), decodes(3, 40, (20, 600)))
