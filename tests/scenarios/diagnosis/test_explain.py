"""`batchlab explain`, and the diagnosis that `run`, `compare` and reports show."""

import json
from pathlib import Path

import pytest

from docs.writers.findings import page
from scenarios.diagnosis.diagnose import changed
from scenarios.diagnosis.rules import RULES
from scenarios.schema.loader import load
from simulator.errors import InputError
from tests.command import ROOT, batchlab, small, tree

DATA = ROOT / "tests" / "data" / "diagnosis"


def test_the_page_is_up_to_date() -> None:
    again = "write it again: make pages PAGES=diagnosis"
    assert (ROOT / "docs" / "diagnosis.md").read_text(encoding="utf-8") == page(), again
    for rule in RULES:
        assert f"(`{rule.name}`)" in page()
    assert len({rule.name for rule in RULES}) == len(RULES)


@pytest.mark.usefixtures("blank_pictures")
def test_a_run_says_what_is_wrong_and_explain_what_helps(tmp_path: Path) -> None:
    done = batchlab("run", DATA / "broken" / "admission-bound.yaml", "--report", "--out", "r", cwd=tmp_path)
    assert done.code == 0
    said = done.out.partition("\nDiagnosis\n")[2]
    assert said.startswith("Low occupancy: admission-bound (explains 100 % of the late requests, 0 s to 10")
    assert "batchlab explain r tries what helps." in said
    html = (tmp_path / "r" / "report.html").read_text(encoding="utf-8")
    section = html.partition("<h2>Diagnosis</h2>")[2].partition("<h2>")[0]
    assert "396 of 400 requests are late" in section
    assert "1. Low occupancy: admission-bound" in section
    assert "engine.max_num_seqs=256" in section

    text = batchlab("explain", "r", cwd=tmp_path)
    assert text.code == 0
    assert "1. Low occupancy: admission-bound" in text.out
    assert "helps: late requests 396 -> 0 (99 % -> 0 %)" in text.out.replace("\n     ", " ")
    assert "warning" not in text.err

    found = json.loads(batchlab("explain", "r", "--json", cwd=tmp_path).out)
    first = found["findings"][0]
    assert first["finding"] == "admission-bound"
    assert first["remedies"][0]["set"] == {"engine.max_num_seqs": 256}
    assert first["remedies"][0]["gained"]
    assert not found["slo_kept"]

    untried = json.loads(batchlab("explain", "r", "--json", "--no-what-if", cwd=tmp_path).out)
    assert [each["tried"] for each in untried["findings"][0]["remedies"]] == [False]
    assert {key: value for key, value in untried.items() if key != "findings"} == {
        key: value for key, value in found.items() if key != "findings"
    }
    better = batchlab("explain", "r", "--set", "engine.max_num_seqs=256", cwd=tmp_path)
    kept = "the SLO is kept (no request is late); the diagnosis found nothing to improve."
    assert kept in better.out.replace("\n", " ")


@pytest.mark.usefixtures("blank_pictures")
def test_explain_writes_a_page_beside_the_run_or_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    batchlab("run", small(tmp_path), "--out", "r", cwd=tmp_path)
    before = tree(tmp_path / "r")
    assert batchlab("explain", "r", "--out", "r", cwd=tmp_path).code == 0
    after = tree(tmp_path / "r")
    assert {name: after[name] for name in before} == before
    assert "report.html" in after
    told: list[object] = []
    monkeypatch.setattr("scenarios.show.write_pictures", lambda folder, runs, notes: told.extend(runs))
    assert batchlab("explain", "r", "--out", "page", cwd=tmp_path).code == 0
    page = tree(tmp_path / "page")
    assert set(page) == {"explain.json", "scenario.yaml"}
    assert after["explain.json"] == page["explain.json"]
    assert len(told) == 1


def test_explain_takes_a_single_run(tmp_path: Path) -> None:
    batchlab("compare", small(tmp_path), "--policies", "static,continuous", "--no-report", "--out", "c", cwd=tmp_path)
    done = batchlab("explain", "c", cwd=tmp_path)
    assert done.code == 2
    assert "explain takes one run" in done.err
    assert "c/static/seed-7" in done.err
    assert batchlab("explain", "c/static/seed-7", "--quiet", cwd=tmp_path).code == 0
    assert "not a run folder of batchlab" in batchlab("explain", ".", cwd=tmp_path).err


def test_a_comparison_has_a_line_a_run(tmp_path: Path) -> None:
    flags = ["--policies", "static,chunked_prefill", "--no-report"]
    done = batchlab("compare", DATA / "healthy" / "chat.yaml", *flags, cwd=tmp_path)
    said = done.out.partition("\nDiagnosis\n")[2].partition("\n\n")[0].replace("\n", " ")
    assert "static: Padding waste (explains " in said
    assert "chunked_prefill: The SLO is kept" in said


def test_remedies_change_every_group_of_a_fleet() -> None:
    fleet = [{"name": "a", "replicas": 2}, {"name": "b", "engine": {"max_num_seqs": 8}}]
    base = load(DATA / "healthy" / "chat.yaml").model_dump(exclude_unset=True)
    scenario = load({**base, "fleet": fleet})
    wider, left_out = changed(scenario, {"engine.max_num_seqs": 99, "replicas": 2.0})
    assert left_out == ()
    assert [(g.replicas, (g.engine or {})["max_num_seqs"]) for g in wider.fleet or ()] == [(4, 99), (2, 99)]
    with pytest.raises(InputError, match="policies of their own"):
        changed(scenario, {"engine.policy": "continuous"})


def test_a_remedy_may_name_another_policy_or_a_part_of_the_router() -> None:
    scenario = load(DATA / "broken" / "padding.yaml", ["engine.batch_timeout_s=0.2", "replicas=2"])
    other, left_out = changed(scenario, {"engine.policy": "chunked_prefill"})
    assert other.engine.policy == "chunked_prefill"
    assert left_out == ("batch_timeout_s",)
    stale = load(scenario.model_dump(exclude_unset=True) | {"router": {"kind": "least_loaded", "signal_interval_s": 5}})
    assert changed(stale, {"router.signal_interval_s": 0.0})[0].routing.signal_interval_s == 0.0
    assert changed(stale, {"router": "random"})[0].routing.kind == "random"
