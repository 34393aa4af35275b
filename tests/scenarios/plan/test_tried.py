"""A plan that was stopped goes on: what was tried is kept, the answer is that of a plan in one go, nothing is left."""

import json
from pathlib import Path
from typing import Any

import pytest

from scenarios.plan.answer import write_plan
from scenarios.plan.goal import chosen_goals
from scenarios.plan.plan import make_plan
from scenarios.plan.trial import Laboratory, Tried
from scenarios.schema.loader import load
from tests.command import batchlab
from tests.scenarios.plan.cases import CHAT, chat


def test_a_stopped_plan_goes_on_to_the_same_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scenario = chat()
    goals = chosen_goals(["p99_ttft_ms<=300"], scenario)

    def planned(**options: Any) -> str:
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        folder.mkdir()
        found = make_plan(scenario, goals, seeds=2, **options)
        write_plan(folder, found, scenario)
        return (folder / "plan.json").read_text(encoding="utf-8")

    whole = planned()
    made = Laboratory._made
    runs: list[int] = []

    def stopping(self: Laboratory, *args: Any) -> Any:
        if len(runs) == 7:
            raise KeyboardInterrupt
        runs.append(1)
        return made(self, *args)

    monkeypatch.setattr(Laboratory, "_made", stopping)
    target = tmp_path / "out"
    with pytest.raises(KeyboardInterrupt):
        planned(tried=Tried(target))
    assert len(list(target.glob(".partial-plan/*.npz"))) == 7
    monkeypatch.setattr(Laboratory, "_made", made)
    (target / ".partial-plan" / "torn.npz").write_bytes(b"PK")  # never read: no run has this name
    again = Tried(target)
    assert planned(tried=again) == whole
    assert again.found == 7
    once_more = Tried(target)
    assert planned(tried=once_more) == whole, "causes are those of runs that are made again"
    assert once_more.found == json.loads(whole)["runs"]
    once_more.forget()
    assert not list(target.glob("*.npz"))


def test_what_is_asked_is_part_of_a_run(tmp_path: Path) -> None:
    tried, scenario = Tried(tmp_path / "out"), chat()
    one, other = (chosen_goals([text], scenario) for text in ("p99_ttft_ms<=300", "p99_ttft_ms<=301"))
    keys = {
        tried.key(scenario, one, 0, True),
        tried.key(scenario, other, 0, True),
        tried.key(scenario, one, 50, True),
        tried.key(load(scenario, ["seed=1"]), one, 0, True),
    }
    assert len(keys) == 4
    assert tried.is_empty
    tried.forget()
    assert not (tmp_path / "out").exists()


def test_bad_input_leaves_no_folder(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text(json.dumps({**CHAT}), encoding="utf-8")
    found = batchlab("plan", "c.yaml", "--slo", "p99_ttft_ms<=300", "--gpus", "h10", "--out", "out", cwd=tmp_path)
    assert found.code == 2
    assert [path.name for path in tmp_path.iterdir()] == ["c.yaml"]
