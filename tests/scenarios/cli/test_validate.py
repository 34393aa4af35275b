"""`batchlab validate`: what it prints, what it writes, and what it refuses."""

import json
from pathlib import Path

import pytest
import yaml

from tests.command import Done, batchlab, small, tree

RUN_FILES = {
    "measured.csv.gz", "plots/", "records.npz", "report.html", "requests.csv.gz", "scenario.yaml", "steps.csv.gz",
    "summary.json", "validation.json",
}  # fmt: skip
PLOTS = ("errors", "ttft_cdf", "tpot_cdf", "e2el_cdf", "requests", "timeline")


pytestmark = pytest.mark.usefixtures("blank_pictures")


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a scenario and the log of a server that was a little slower."""
    folder = tmp_path_factory.mktemp("validate")
    path = small(folder)
    batchlab("run", path, "--set", "cost.base_s=0.006", "--out", "server", "--quiet", cwd=folder)
    return folder


def validate(here: Path, *flags: str) -> Done:
    return batchlab("validate", "small.yaml", "--measured", "server/requests.csv.gz", "--out", "out", *flags, cwd=here)


def test_table_verdict_and_files(here: Path) -> None:
    done = validate(here)
    assert done.code == 0, done.err
    assert [line.split()[:2] for line in done.out.splitlines()[1:3]] == [["TTFT", "mean"], ["TTFT", "p50"]]
    for part in ("makespan", "output throughput", "share of the error (ms)", "decode causes most of it"):
        assert part in done.out
    assert "report: out/report.html" in done.out
    found = tree(here / "out")
    assert {name for name in found if name.count("/") == 0 or name == "plots/"} == RUN_FILES
    assert {f"plots/{name}.{kind}" for name in PLOTS for kind in ("png", "svg")} <= set(found)
    page = (here / "out" / "report.html").read_text(encoding="utf-8")
    assert "<title>small: simulated and measured</title>" in page
    for known in ("http-equiv", "http://www.w3.org", "https://www.w3.org"):
        page = page.replace(known, "")
    assert "http" not in page
    before = tree(here / "out")
    again = validate(here)
    assert again.out == done.out
    assert tree(here / "out") == before


def test_json_is_as_the_contract_has_it(here: Path) -> None:
    done = validate(here, "--json", "--no-report")
    data = json.loads(done.out)
    assert set(data["errors"]) == {"ttft", "tpot", "e2e"}
    assert set(data["errors"]["ttft"]) == {"mean", "p50", "p90", "p99"}
    assert data["errors"]["tpot"]["mean"] == pytest.approx(-0.14, abs=0.05)
    assert data["carrier"] == "decode"
    sizes = [abs(error) for of in data["errors"].values() for error in of.values()] + [abs(data["makespan"])]
    assert data["score"] == pytest.approx(sum(sizes) / 13)
    assert abs(data["worst"]) == max(sizes)
    assert data["per_request_e2e_median"] > 0
    assert json.loads((here / "out" / "validation.json").read_text(encoding="utf-8")) == data
    assert validate(here, "--json", "--no-report", "--front-end", "log").code == 2, "another validation"
    assert json.loads((here / "out" / "validation.json").read_text(encoding="utf-8")) == data


def test_replay_takes_the_workload_from_the_log(here: Path) -> None:
    other = "small.yaml"
    flags = ["--measured", "server/requests.csv.gz", "--json", "--out", "replayed", "--no-report"]
    plain = json.loads(batchlab("validate", other, "--seed", "99", *flags, cwd=here).out)
    flags = [*flags, "--replay", "--overwrite"]
    replayed = json.loads(batchlab("validate", other, "--seed", "99", *flags, cwd=here).out)
    assert abs(replayed["errors"]["tpot"]["mean"]) < abs(plain["errors"]["tpot"]["mean"]) + 0.2
    assert replayed["per_request"]["e2e"]["p90_size"] < plain["per_request"]["e2e"]["p90_size"]


def test_replay_needs_no_workload(here: Path) -> None:
    scenario = yaml.safe_load((here / "small.yaml").read_text(encoding="utf-8"))
    del scenario["workload"]
    (here / "bare.yaml").write_text(yaml.safe_dump(scenario), encoding="utf-8")
    flags = ["--measured", "server/requests.csv.gz", "--json", "--no-report"]
    done = batchlab("validate", "bare.yaml", "--replay", *flags, "--out", "bare", cwd=here)
    assert done.code == 0, done.err
    whole = batchlab("validate", "small.yaml", "--replay", *flags, "--out", "whole", cwd=here)
    assert json.loads(done.out) == json.loads(whole.out)
    written = yaml.safe_load((here / "bare" / "scenario.yaml").read_text(encoding="utf-8"))
    assert written["workload"]["trace"]["path"] == str(here / "server" / "requests.csv.gz")
    without = batchlab("validate", "bare.yaml", *flags, "--out", "bare", cwd=here)
    assert (without.code, "workload: missing" in without.err) == (2, True)
    nowhere = batchlab("validate", "bare.yaml", "--replay", "--measured", "nowhere.csv", cwd=here)
    assert (nowhere.code, "nowhere.csv: no such file" in nowhere.err) == (2, True)


def test_time_series_beside_the_log(here: Path) -> None:
    (here / "ticks.csv").write_text("t,running,waiting\n1,8,2\n2,8,5\n3,1,0\n", encoding="utf-8")
    assert validate(here, "--timeseries", "ticks.csv", "--overwrite").code == 0
    done = validate(here, "--timeseries", "server/requests.csv.gz")
    assert done.code == 2
    assert "no column t, running, waiting" in done.err


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--measured", "nowhere.csv"], "nowhere.csv: no such file"),
        (["--measured", "small.yaml"], "small.yaml:1: no column"),
        (["--measured", "server/summary.json"], "the summary of `vllm bench serve`"),
        (["--measured", "server/requests.csv.gz", "--format", "aiprf"], "unknown format of a log: 'aiprf'"),
        (["--measured", "server/requests.csv.gz", "--out", "server/.."], "is not empty"),
    ],
)
def test_bad_input_ends_with_2(here: Path, flags: list[str], said: str) -> None:
    done = batchlab("validate", "small.yaml", *flags, cwd=here)
    assert done.code == 2
    assert said in done.err
    assert "Traceback" not in done.err
