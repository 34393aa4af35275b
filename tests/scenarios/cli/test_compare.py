"""`batchlab compare`, and `report` over what it wrote."""

import json
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest
import yaml

from reports.picture import ReportRun
from simulator.policies import COMPARED
from tests.command import batchlab, small, tree

RUN_FILES = {"scenario.yaml", "summary.json", "requests.csv.gz", "steps.csv.gz", "records.npz"}
VERBS = ["run", "compare", "validate", "lockstep", "report", "list", "kv", "calibrate", "check", "trace", "new"]


@pytest.mark.usefixtures("blank_pictures")
def test_compare_writes_everything_and_report_draws_it_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = small(tmp_path)
    flags = ["--policies", "static, chunked_prefill", "--seeds", "2", "--set", "engine.order=priority"]
    folder = "runs/small-compare-static+chunked_prefill-seeds=2-order=priority"
    done = batchlab("compare", path, *flags, cwd=tmp_path)
    assert done.code == 0
    assert done.out.endswith(f"\nrun folders: {folder}\nreport: {folder}/report.html\n")
    assert "2 seeds" in done.out
    assert "note: --set engine.order is applied to chunked_prefill alone: static does not take order" in done.err
    target = tmp_path / folder
    for run in ("static/seed-7", "static/seed-8", "chunked_prefill/seed-7", "chunked_prefill/seed-8"):
        assert set(tree(target / run)) == RUN_FILES
    assert (target / "report.html").stat().st_size > 10_000
    assert yaml.safe_load((target / "scenario.yaml").read_text())["engine"]["policy"] == "chunked_prefill"

    again = batchlab("compare", path, *flags, "--out", "again", cwd=tmp_path)
    assert again.out.replace("again", folder) == done.out
    before = tree(target)
    assert tree(tmp_path / "again") == before

    path.unlink()
    monkeypatch.setattr("scenarios.runs.runner.simulate_fleet", None)  # nothing is simulated
    (target / "report.html").unlink()
    drawn = batchlab("report", target.relative_to(tmp_path), cwd=tmp_path)
    assert drawn.out == done.out.replace(f"run folders: {folder}\n", "")
    assert tree(target) == before


def test_compare_takes_one_policy_of_each_kind_unless_told(tmp_path: Path) -> None:
    done = batchlab("compare", small(tmp_path), "--json", "--no-report", "--quiet", cwd=tmp_path)
    assert list(json.loads(done.out)) == [*COMPARED]
    assert f"default: {','.join(COMPARED)}" in " ".join(batchlab("compare", "--help", cwd=tmp_path).out.split())


def test_compare_json_is_summaries_with_intervals(tmp_path: Path) -> None:
    done = batchlab(
        "compare", small(tmp_path), "--policies", "static,continuous", "--seeds", "3", "--json", "--no-report",
        cwd=tmp_path,
    )  # fmt: skip
    folder = tmp_path / "runs/small-compare-static+continuous-seeds=3"
    found = json.loads(done.out)
    assert list(found) == ["static", "continuous"]
    assert found == json.loads((folder / "compare.json").read_text())
    low, high = found["static"]["intervals"]["p99_ttft_ms"]
    assert low < found["static"]["p99_ttft_ms"] < high
    assert found["static"]["completed"] == 60
    assert not (folder / "report.html").exists()
    single = json.loads((folder / "static/seed-7/summary.json").read_text())
    assert single.keys() <= found["static"].keys()


@pytest.mark.usefixtures("blank_pictures")
def test_compare_several_settings_of_one_policy(tmp_path: Path) -> None:
    policies = "chunked_prefill,static,chunked_prefill:max_num_batched_tokens=64"
    done = batchlab(
        "compare", small(tmp_path), "--policies", policies, "--json", "--no-report", "--out", "c", cwd=tmp_path
    )
    found = json.loads(done.out)
    plain, other = (f"chunked_prefill max_num_batched_tokens={value}" for value in (256, 64))
    assert list(found) == [other, plain, "static"]
    assert found[other]["runs"] == ["chunked_prefill-max_num_batched_tokens=64/seed-7"]
    assert (tmp_path / "c" / found[plain]["runs"][0] / "summary.json").is_file()
    again = batchlab("report", "c", cwd=tmp_path)
    assert f"\n{other} " in again.out
    bad = batchlab("compare", "small.yaml", "--policies", "static:max_num_seq=3", cwd=tmp_path)
    assert bad.code == 2
    assert "--policies: static:max_num_seq=3: static does not take max_num_seq" in bad.err
    assert "did you mean `max_num_seqs`?" in bad.err


def test_report_over_several_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def draw(folder: Path, runs: Sequence[ReportRun], notes: Sequence[str], *, paired: bool) -> None:
        assert paired, "the same requests and SLO"
        text = "\n".join([*(f"{run.label}: {len(run.summaries)}" for run in runs), *notes])
        (folder / "report.html").write_text(text)

    monkeypatch.setattr("reports.pages.run_report.write_report", draw)
    path = small(tmp_path)
    batchlab("run", path, "--out", "a", cwd=tmp_path)
    batchlab("run", path, "--out", "b", "--set", "engine.max_num_seqs=2", cwd=tmp_path)
    batchlab("compare", path, "--policies", "static", "--seeds", "2", "--no-report", "--out", "c", cwd=tmp_path)
    done = batchlab("report", "a", "b", "c", "a", cwd=tmp_path)
    assert done.code == 0
    assert done.out.endswith("report: runs/report-a+b+c/report.html\n")
    labels = ["chunked_prefill max_num_seqs=2", "chunked_prefill max_num_seqs=8", "static"]
    assert all(f"\n{label} " in done.out for label in labels)
    assert "different numbers of seeds" in done.err
    page = (tmp_path / "runs/report-a+b+c/report.html").read_text().splitlines()
    assert page[:3] == [f"{label}: 1" for label in labels]
    assert "different numbers of seeds" in page[3]
    again = batchlab("report", "b", "a", cwd=tmp_path)
    assert again.code == 0, "an earlier report of others is no obstacle"
    assert (tmp_path / "runs/report-b+a/report.html").exists()
    assert again.out.index("\nmax_num_seqs=2 ") < again.out.index("\nmax_num_seqs=8 "), "in the order of the values"
    assert "step costs" not in again.err
    cost = "cost={kind: linear, base_s: 0.01, per_token_s: 2.0e-5, per_context_token_s: 0}"
    batchlab("run", path, "--out", "e", "--set", cost, cwd=tmp_path)
    assert "step costs" not in batchlab("report", "a", "e", cwd=tmp_path).err, "of one kind"
    batchlab("run", path, "--out", "f", "--set", "cost={kind: roofline}", cwd=tmp_path)
    mixed = batchlab("report", "a", "f", cwd=tmp_path)
    assert "warning: the runs have different step costs (linear, roofline)" in mixed.err
    assert "\ncost.kind=linear " in mixed.out
    shutil.copytree(tmp_path / "a", tmp_path / "d")
    same = batchlab("report", "a", "d", cwd=tmp_path).out
    assert all(f"\nchunked_prefill ({folder}) " in same for folder in "ad")
