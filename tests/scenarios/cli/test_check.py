"""`batchlab check policy`: its table, the counterexample on disk, exit codes, and what is refused."""

import json
import re
from pathlib import Path

import pytest

from scenarios.check.check_policy import LAWS
from tests.command import ROOT, Done, batchlab, tree

POLICY = '''"""A policy for a test."""
from dataclasses import dataclass
from simulator.plan import Chunk, StepPlan, View

@dataclass
class Greedy:
    """Admits every prompt at once: no slots, no blocks."""

    max_num_seqs: int = 2

    def plan(self, view: View) -> StepPlan:
        print("hello")
        return StepPlan(prefill=tuple(Chunk(request, request.num_tokens_to_compute) for request in view.waiting))
'''

FEW = ("--scenarios", "2", "--seed", "22")  # enough for the policy to show what it does


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "greedy.py").write_text(POLICY, encoding="utf-8")
    return tmp_path


def check(folder: Path, *arguments: str | Path) -> Done:
    return batchlab("check", "policy", *arguments, cwd=folder)


def test_a_policy_that_holds_to_the_laws(tmp_path: Path) -> None:
    done = check(tmp_path, "chunked_prefill", "--scenarios", "4")
    assert done.code == 0
    lines = done.out.splitlines()
    assert lines[0] == "chunked_prefill, 4 scenarios of seed 0"
    assert [line.split()[:3] for line in lines[3:]] == [[law, "4", "holds"] for law in LAWS]
    assert "s of CPU time" in done.err
    assert not tree(tmp_path), "nothing is written where there is nothing to show"


def test_the_page_names_every_law() -> None:
    rows = re.findall(r"^\| `([\w-]+)` \|", (ROOT / "docs/check.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert rows == list(LAWS)


def test_a_warning_is_no_breach(tmp_path: Path) -> None:
    done = check(tmp_path, "static", "--scenarios", "2")
    assert done.code == 0
    assert "work: warning" in done.out
    assert (tmp_path / "runs/check-static/work.yaml").is_file()


def test_a_counterexample_is_written_and_replays(folder: Path) -> None:
    """As one of the check, and as a run, with the same words."""
    done = check(folder, "greedy.py", *FEW)
    assert done.code == 3
    assert done.out.startswith("greedy.py:Greedy, 2 scenarios of seed 22\n")
    assert "budgets: BROKEN" in done.out
    says = "max_num_seqs"
    assert says in done.out.partition("budgets: BROKEN")[2]
    assert "hello" not in done.out, "what a policy prints is none of our output"
    written = "runs/check-Greedy/budgets.yaml"
    assert f"replay:  batchlab check policy greedy.py:Greedy --scenario {written}" in done.out
    again = check(folder, "greedy.py:Greedy", "--scenario", written)
    assert again.code == 3
    assert says in again.out.partition("budgets: BROKEN")[2]
    run = batchlab("run", written, cwd=folder)
    assert run.code == 2
    assert says in run.err
    assert "greedy.py" in run.err


def test_stdout_has_the_same_bytes_each_time(folder: Path) -> None:
    once = check(folder, "greedy.py", *FEW)
    files = tree(folder)
    again = check(folder, "greedy.py", *FEW, "--overwrite", "--quiet")
    assert once.out == again.out
    assert files == tree(folder)
    assert again.err.replace("hello\n", "") == ""


def test_json_alone(folder: Path) -> None:
    done = check(folder, "greedy.py", *FEW, "--json")
    data = json.loads(done.out)
    assert done.code == 3
    assert data["holds"] is False
    assert list(data["laws"]) == list(LAWS)
    assert data["laws"]["budgets"]["result"] == "BROKEN"
    found = data["laws"]["budgets"]["counterexample"]
    assert found["requests"] <= 5
    assert found["file"] == "budgets.yaml"
    assert data["laws"]["oracle"]["counterexample"] is None


def test_nothing_is_replaced_unasked(folder: Path) -> None:
    assert check(folder, "greedy.py", *FEW).code == 3
    before = tree(folder)
    refused = check(folder, "greedy.py", *FEW)
    assert refused.code == 2
    assert "exists already" in refused.err
    assert "--overwrite" in refused.err
    assert tree(folder) == before
    other = check(folder, "greedy.py", *FEW, "--out", "elsewhere")
    assert other.code == 3
    assert (folder / "elsewhere/budgets.csv").is_file()


def test_a_mended_policy_takes_its_old_counterexamples_away(folder: Path) -> None:
    assert check(folder, "greedy.py", *FEW, "--out", "found").code == 3
    assert check(folder, "orca", "--scenarios", "2", "--out", "found", "--overwrite").code == 0
    assert not list((folder / "found").iterdir())


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["nowhere.py"], "no such policy file: nowhere.py"),
        (["empty.py"], "no class with a method `plan`"),
        (["two.py"], "choose one of two.py:{One,Two}"),
        (["wrong.py"], "wrong.py:1: cannot be loaded"),
        (["chunked_prefil"], "did you mean chunked_prefill?"),
        (["needs.py"], "needs quantum"),
        (["needs.py"], "--set KEY=VALUE"),
        (["greedy.py", "--set", "max_num_sqs=3"], "max_num_seqs"),
        (["greedy.py", "--set", "max_num_seqs"], "not of the form"),
        (["greedy.py", "--scenario", "nowhere.yaml"], "nowhere.yaml"),
    ],
)
def test_bad_input(folder: Path, arguments: list[str], says: str) -> None:
    one = "class {}:\n    def plan(self, view): ...\n"
    (folder / "empty.py").write_text("VALUE = 1\n", encoding="utf-8")
    (folder / "two.py").write_text(one.format("One") + one.format("Two"), encoding="utf-8")
    (folder / "wrong.py").write_text("def broken(\n", encoding="utf-8")
    needs = POLICY.replace("    max_num_seqs: int = 2", "    quantum: int\n    max_num_seqs: int = 2")
    (folder / "needs.py").write_text(needs, encoding="utf-8")
    done = check(folder, *arguments)
    assert done.code == 2
    assert says in done.err
    assert not done.out


def test_set_gives_what_a_policy_needs(folder: Path) -> None:
    needs = POLICY.replace("    max_num_seqs: int = 2", "    quantum: int\n    max_num_seqs: int = 2")
    (folder / "needs.py").write_text(needs, encoding="utf-8")
    done = check(folder, "needs.py", "--set", "quantum=4", "--set", "engine.max_num_seqs=1", *FEW)
    assert done.code == 3
    assert "quantum: 4" in (folder / "runs/check-Greedy/budgets.yaml").read_text(encoding="utf-8")
    assert "max_num_seqs: 1" in (folder / "runs/check-Greedy/budgets.yaml").read_text(encoding="utf-8")
