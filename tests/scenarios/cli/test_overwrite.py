"""Every verb and the results that are there already: nothing is replaced unless --overwrite says so."""

from pathlib import Path

import pytest

from tests.command import batchlab, small, tree

OTHER = ["--set", "engine.max_num_seqs=2"]


@pytest.mark.parametrize(
    "verb",
    [
        ["run", "small.yaml"],
        ["compare", "small.yaml", "--policies", "static,continuous", "--no-report"],
        ["lockstep", "small.yaml", "--replay", "none.csv"],
    ],
)
def test_other_results_are_refused_and_named(tmp_path: Path, verb: list[str]) -> None:
    small(tmp_path)
    batchlab("run", "small.yaml", "--seed", "3", "--out", "out", cwd=tmp_path)
    (tmp_path / "none.csv").write_text("")
    before = tree(tmp_path)
    done = batchlab(*verb, "--out", "out", *OTHER, cwd=tmp_path)
    assert (done.code, done.out) == (2, "")
    if verb[0] != "lockstep":  # a replay is compared when it is there
        assert "out holds a run already; its scenario.yaml differs (seed: 3 there, seed: 7 here)" in done.err
        assert "--overwrite" in done.err
        assert "--out" in done.err
    assert tree(tmp_path) == before


def test_runs_that_differ_have_folders_of_their_own(tmp_path: Path) -> None:
    small(tmp_path)
    for flags in ([], OTHER, ["--seed", "3"], [*OTHER, "--seed", "3"], ["--set", "engine.policy=static"]):
        assert batchlab("run", "small.yaml", *flags, cwd=tmp_path).code == 0
    assert {path.name for path in (tmp_path / "runs").iterdir()} == {
        "small-chunked_prefill",
        "small-chunked_prefill-max_num_seqs=2",
        "small-chunked_prefill-seed=3",
        "small-chunked_prefill-max_num_seqs=2-seed=3",
        "small-static",
    }


def test_an_edited_scenario_of_the_same_name_is_refused(tmp_path: Path) -> None:
    path = small(tmp_path)
    batchlab("run", path, cwd=tmp_path)
    path.write_text(path.read_text().replace("max_num_seqs: 8", "max_num_seqs: 4"))
    done = batchlab("run", path, cwd=tmp_path)
    assert done.code == 2
    assert "max_num_seqs: 8 there, max_num_seqs: 4 here" in done.err
    assert batchlab("run", path, "--overwrite", cwd=tmp_path).code == 0


def test_an_edited_policy_of_the_same_name_is_refused(tmp_path: Path) -> None:
    """The scenario is the same to the letter: what comes out tells."""
    small(tmp_path)
    batchlab("new", "policy", "mine", cwd=tmp_path)
    flags = ["run", "small.yaml", "--set", "engine.policy=./mine.py:ShortestPrompt", "--set", "engine.max_num_seqs=2"]
    assert batchlab(*flags, cwd=tmp_path).code == 0
    before = tree(tmp_path / "runs")
    text = (tmp_path / "mine.py").read_text()
    changed = text.replace("nsmallest(", "nlargest(").replace("import nsmallest", "import nlargest")
    assert changed != text
    (tmp_path / "mine.py").write_text(changed)
    done = batchlab(*flags, cwd=tmp_path)
    assert done.code == 2
    assert "holds other results of the same name" in done.err
    assert tree(tmp_path / "runs") == before


def test_a_comparison_may_be_repeated_and_its_folder_is_its_own(tmp_path: Path) -> None:
    small(tmp_path)
    flags = ["compare", "small.yaml", "--no-report", "--policies"]
    for policies in ("static,continuous", "static,continuous", "continuous"):
        assert batchlab(*flags, policies, cwd=tmp_path).code == 0
    assert {path.name for path in (tmp_path / "runs").iterdir()} == {
        "small-compare-static+continuous",
        "small-compare-continuous",
    }
    before = tree(tmp_path)
    done = batchlab(*flags, "static", "--out", "runs/small-compare-continuous", cwd=tmp_path)
    assert done.code == 2
    assert "holds a comparison already; its policies or seeds differ" in done.err
    assert tree(tmp_path) == before


def test_a_report_into_another_runs_folder_is_refused(tmp_path: Path) -> None:
    small(tmp_path)
    batchlab("run", "small.yaml", "--out", "a", cwd=tmp_path)
    batchlab("run", "small.yaml", *OTHER, "--out", "b", cwd=tmp_path)
    before = tree(tmp_path)
    done = batchlab("report", "a", "--out", "b", cwd=tmp_path)
    assert (done.code, done.out) == (2, "")
    assert "b holds a run already" in done.err
    assert tree(tmp_path) == before


def test_another_report_is_replaced_only_when_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "one"

    def draw(folder: Path, *_: object, **__: object) -> None:
        (folder / "report.html").write_text(text)

    monkeypatch.setattr("reports.pages.run_report.write_report", draw)
    small(tmp_path)
    batchlab("run", "small.yaml", "--report", "--out", "a", cwd=tmp_path)
    assert batchlab("report", "a", cwd=tmp_path).code == 0
    text = "two"
    done = batchlab("report", "a", cwd=tmp_path)
    assert done.code == 2
    assert "report.html would change" in done.err
    assert (tmp_path / "a/report.html").read_text() == "one"
    assert batchlab("report", "a", "--overwrite", cwd=tmp_path).code == 0
    assert (tmp_path / "a/report.html").read_text() == "two"
    assert (tmp_path / "a/records.npz").exists(), "only the report"


def test_a_calibration_file_is_replaced_only_when_asked(tmp_path: Path) -> None:
    steps = tmp_path / "steps.csv"
    fit = ["calibrate", "fit", "--from-steps", "steps.csv", "--out", "cost.json"]
    rows = [
        f"{tokens},{context},{5 + 0.02 * tokens + 0.0005 * context}" for tokens in range(1, 9) for context in (64, 900)
    ]
    steps.write_text("\n".join(["tokens,context,ms", *rows]) + "\n")
    assert batchlab(*fit, cwd=tmp_path).code == 0
    assert batchlab(*fit, cwd=tmp_path).code == 0
    before = (tmp_path / "cost.json").read_bytes()
    steps.write_text("\n".join(["tokens,context,ms", *(row.replace(",5.", ",6.") for row in rows)]) + "\n")
    done = batchlab(*fit, cwd=tmp_path)
    assert done.code == 2
    assert "cost.json would change" in done.err
    assert (tmp_path / "cost.json").read_bytes() == before
    assert batchlab(*fit, "--overwrite", cwd=tmp_path).code == 0
    assert (tmp_path / "cost.json").read_bytes() != before


def test_reports_of_different_costs_warn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def draw(folder: Path, *_: object, **__: object) -> None:
        (folder / "report.html").touch()

    monkeypatch.setattr("reports.pages.run_report.write_report", draw)
    small(tmp_path)
    batchlab("run", "small.yaml", "--out", "a", cwd=tmp_path)
    batchlab("run", "small.yaml", "--out", "b", "--set", "cost={kind: roofline}", cwd=tmp_path)
    done = batchlab("report", "a", "b", cwd=tmp_path)
    assert "warning: the runs have different step costs (linear, roofline)" in done.err
    assert "step costs: linear (given) / roofline (not validated)" in done.out
    assert "warning" not in batchlab("report", "a", cwd=tmp_path).err
