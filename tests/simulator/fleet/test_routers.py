"""Routers: the built-in ones by name, a user's own from its file."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

import scenarios
from simulator.errors import InputError
from simulator.fleet.replicas import Replicas
from simulator.fleet.routers import built_in_routers, load_router
from tests.scenarios.runs.test_runner import small

STICKY = """
class Sticky:
    def choose(self, request, replicas):
        return replicas[request.input_tokens % len(replicas)]
"""


def write(folder: Path, text: str) -> Path:
    path = folder / "mine.py"
    path.write_text(text, encoding="utf-8")
    return path


def test_a_router_is_a_file_of_the_folder() -> None:
    assert {"least_loaded", "round_robin"} <= set(built_in_routers())
    folder = Path(__file__).parents[3] / "simulator" / "fleet" / "routers"
    assert {path.stem for path in folder.glob("*.py")} - {"__init__"} == set(built_in_routers())


def test_each_router_chooses_as_it_says() -> None:
    loads: Any = [SimpleNamespace(index=index, num_unfinished=load) for index, load in enumerate((3, 1, 1))]
    replicas = Replicas(loads)
    request: Any = None
    in_turn = load_router("round_robin")
    assert [in_turn.choose(request, replicas).index for _ in range(4)] == [0, 1, 2, 0]
    assert load_router("round_robin").choose(request, replicas).index == 0  # each run begins anew
    assert load_router("least_loaded").choose(request, replicas).index == 1


def test_a_users_own_router_runs_and_is_found_beside_the_scenario(tmp_path: Path) -> None:
    write(tmp_path, STICKY)
    path = tmp_path / "scenario.yaml"
    path.write_text(yaml.safe_dump({**small(replicas=3), "router": "mine.py:Sticky"}), encoding="utf-8")
    result = scenarios.run(path)
    rows = result.records.requests
    assert (rows.replica == rows.input_tokens % 3).all()
    again = scenarios.run(yaml.safe_load(result.scenario_yaml))
    assert again.summary == result.summary


BROKEN = {
    "no such file": (None, "router: no such file"),
    "no class": ("class Stick: pass", "no class 'Sticky'"),
    "no router": ("class Sticky: pass", "Sticky is no router"),
    "syntax": ("class Sticky:\n    def", "cannot be loaded: SyntaxError"),
    "needs arguments": (
        "class Sticky:\n    def __init__(self, n): ...\n    def choose(self, a, b): ...",
        "cannot be made",
    ),
    "raises": ("class Sticky:\n    def choose(self, a, b):\n        return 1 / 0", r"mine\.py:3: ZeroDivisionError"),
    "chooses nothing": (
        "class Sticky:\n    def choose(self, a, b): ...",
        r"mine\.py: the router chose None for request 0",
    ),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_router_is_bad_input_with_its_file(case: str, tmp_path: Path) -> None:
    text, said = BROKEN[case]
    path = tmp_path / "mine.py" if text is None else write(tmp_path, text)
    with pytest.raises(InputError, match=said) as caught:
        scenarios.run({**small(replicas=2), "router": f"{path}:Sticky"})
    assert "mine.py" in str(caught.value)


def test_an_unknown_router_has_the_nearest_name_and_all_names() -> None:
    with pytest.raises(InputError, match="unknown router 'round_robbin'") as caught:
        load_router("round_robbin")
    known = ", ".join(built_in_routers())
    assert f"did you mean round_robin? known: {known}, or path/to/file.py" in str(caught.value)
