"""`batchlab sweep`: the commands of its page, its report, and the same bytes however it ran."""

import json
import shlex
import shutil
from pathlib import Path

import pytest

from tests.command import ROOT, batchlab
from tests.scenarios.studies.test_study import TINY

COMMANDS = [
    line for line in (ROOT / "docs/sweep.md").read_text(encoding="utf-8").splitlines() if line[:9] == "batchlab "
]


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tiny.yaml").write_text(TINY)


def sweep(*arguments: str) -> str:
    result = batchlab("sweep", *arguments, "--quiet", cwd=Path.cwd())
    assert result.code == 0, result.err
    return result.out


def files(folder: Path) -> dict[str, bytes]:
    found = sorted(path for path in folder.rglob("*") if path.is_file() and path.parent.name != "points")
    return {str(path.relative_to(folder)): path.read_bytes() for path in found}


@pytest.mark.usefixtures("blank_pictures")
@pytest.mark.parametrize(
    "less", [["--set", "workload.requests=40", "--seeds", "1"], pytest.param([], marks=pytest.mark.long)]
)
@pytest.mark.parametrize("command", COMMANDS)
def test_the_commands_of_the_page(command: str, less: list[str], tmp_path: Path) -> None:
    verb, *arguments = shlex.split(command)[1:]
    assert verb == "sweep"
    said = sweep(*arguments, *less)
    assert "best by" in said
    assert "cheapest within the SLO" in said or "TTFT p99" in said
    (report,) = tmp_path.rglob("report.html")
    page = report.read_text(encoding="utf-8")
    for title in ("The best points", "Over two keys", "All points"):
        assert f"<h2>{title}</h2>" in page
    assert (report.parent / "plots").is_dir()


def test_there_are_two_commands() -> None:
    assert [shlex.split(command)[2] for command in COMMANDS] == ["load-and-budget", "quickstart"]


@pytest.mark.usefixtures("blank_pictures")
def test_the_report_has_the_same_bytes_however_it_ran() -> None:
    vary = ["--vary", "engine.max_num_seqs=1,4", "--vary", "workload.classes.chat.arrival.rate=2:8:3", "--seeds", "2"]
    sweep("tiny.yaml", *vary, "--out", "one", "--workers", "1")
    sweep("tiny.yaml", *vary, "--out", "two", "--workers", "2")
    assert files(Path("one")) == files(Path("two"))
    assert "plots/load.png" in files(Path("one"))
    sweep("tiny.yaml", *vary, "--out", "two", "--workers", "1")  # all there already
    assert files(Path("one")) == files(Path("two"))


def test_pictures_of_an_earlier_grid_go() -> None:
    sweep("tiny.yaml", "--vary", "engine.max_num_seqs=1,4", "--vary", "workload.arrival.rate=2:8:3", "--out", "out",
          "--workers", "1")  # fmt: skip
    assert any("heatmap" in name for name in files(Path("out")))
    sweep("tiny.yaml", "--vary", "engine.max_num_seqs=1,4", "--out", "out", "--workers", "1")
    assert not any("heatmap" in name for name in files(Path("out")))


def test_without_a_report_there_is_none() -> None:
    said = sweep("tiny.yaml", "--vary", "engine.max_num_seqs=1,4", "--out", "out", "--workers", "1", "--no-report")
    assert "best by" not in said
    assert not (Path("out") / "report.html").exists()


def test_a_failed_point_is_in_the_report_and_json_stays_json() -> None:
    said = sweep("tiny.yaml", "--vary", "engine.max_num_seqs=4,-1", "--out", "out", "--workers", "1", "--json")
    assert json.loads(said)["failed"] == 1
    page = (Path("out") / "report.html").read_text(encoding="utf-8")
    assert "<h2>Failed points</h2>" in page
    assert "must be a whole number" in page


@pytest.mark.usefixtures("blank_pictures")
def test_moving_keys_are_one_axis_and_random_points_have_no_map() -> None:
    sweep("tiny.yaml", "--vary", "engine.max_num_seqs, engine.policy=[4, static],[8, continuous]", "--out", "out",
          "--workers", "1")  # fmt: skip
    assert "a sweep of max_num_seqs, policy</h1>" in (Path("out") / "report.html").read_text(encoding="utf-8")
    Path("random.yaml").write_text(
        "scenario: tiny.yaml\nsamples: 6\nvary:\n  engine.max_num_seqs: {from: 1, to: 64, steps: 2}\n"
        "  workload.arrival.rate: {from: 2, to: 8, steps: 2}\n"
    )
    sweep("random.yaml", "--out", "random", "--workers", "1")
    assert not any("heatmap" in name for name in files(Path("random")))


def test_a_report_drawn_again_has_the_same_bytes_and_runs_nothing() -> None:
    vary = "engine.policy, engine.max_num_seqs=[static, 1],[chunked_prefill, 4],[static, -1]"
    sweep("tiny.yaml", "--vary", vary, "--seeds", "2", "--set", "slo.ttft_ms=500", "--out", "one", "--workers", "1")
    there = files(Path("one"))
    kept = {"study.yaml", "table.csv", "table.parquet"}
    for name in there.keys() - kept:
        Path("one", name).unlink()
    shutil.rmtree("one/points")
    Path("tiny.yaml").unlink()
    said = batchlab("report", "one", cwd=Path.cwd())
    assert (said.code, said.out.startswith("best by")) == (0, True), said.err
    assert files(Path("one")) == there
    both = batchlab("report", "one", "two", cwd=Path.cwd())
    assert (both.code, "a sweep has a report of its own" in both.err) == (2, True)
