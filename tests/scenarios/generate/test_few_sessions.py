"""Sessions are drawn as far as they are needed."""

from typing import Any

import pytest

from scenarios.generate import GeneratedWorkload, classes, generate
from scenarios.generate.classes import draw_requests
from simulator.workload import Workload
from tests.scenarios.generate.test_subagents import CLASS, OPEN


def test_few_sessions_are_those_of_many(monkeypatch: pytest.MonkeyPatch) -> None:
    keys = {"requests": 500, "classes": [{**CLASS, "arrival": OPEN, "name": name} for name in ("a", "b")]}
    config = GeneratedWorkload.model_validate(keys)
    drawn: list[int] = []

    def told(*args: Any) -> Workload:
        drawn.append(len(args[3]))
        with pytest.MonkeyPatch.context() as inside:  # agents that agents start are drawn there: they are not counted
            inside.setattr(classes, "draw_requests", draw_requests)
            return draw_requests(*args)

    monkeypatch.setattr(classes, "draw_requests", told)
    few = generate(config, 1)
    assert drawn == [64]
    monkeypatch.setattr(classes, "_LEAST_SESSIONS", 500)
    many = generate(config, 1)
    assert drawn == [64, 500]
    for column, values in few.columns().items():
        assert list(values) == list(getattr(many, column))
