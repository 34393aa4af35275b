"""Sweeps: one table whatever worked it out, whatever was there, and however often it was stopped."""

import csv
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from scenarios.runs.runner import run
from scenarios.studies.run_sweep import Failure, InProcess, Local, address, read_sweep, sweep
from scenarios.studies.study import Study, parse_vary, study_of
from simulator.errors import InputError
from tests.command import ROOT
from tests.scenarios.studies.test_study import TINY

SEATS = "engine.max_num_seqs=1,2,4,8"
RATES = "workload.classes.chat.arrival.rate=2:8:3"

DEADLY = """
import os
from dataclasses import dataclass
from simulator.policies.continuous import Continuous

@dataclass(frozen=True)
class Deadly(Continuous):
    def plan(self, view):
        os._exit(9)
"""


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    (tmp_path / "tiny.yaml").write_text(TINY)
    return tmp_path / "tiny.yaml"


def study(tiny: Path, *vary: str, **more: Any) -> Study:
    return study_of(str(tiny), [parse_vary(text) for text in vary or (SEATS, RATES)], **more)


def rows(folder: Path) -> list[dict[str, str]]:
    with (folder / "table.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def tables(folder: Path) -> tuple[bytes, bytes]:
    return (folder / "table.csv").read_bytes(), (folder / "study.yaml").read_bytes()


class Counting(InProcess):
    """Runs in this process, and counts."""

    def __init__(self) -> None:
        self.runs = 0

    def map(self, function: Callable[[Any], Any], items: Iterable[Any]) -> Iterator[tuple[int, Any | Failure]]:
        for place, found in super().map(function, items):
            self.runs += 1
            yield place, found


def test_a_row_is_the_summary_of_its_run(tiny: Path, tmp_path: Path) -> None:
    swept = sweep(study(tiny, seeds=2), tmp_path / "out")
    assert swept.counts() == {"points": 24, "done": 24, "reused": 0, "failed": 0}
    found = rows(tmp_path / "out")
    assert [row["engine.max_num_seqs"] for row in found[::6]] == ["1", "2", "4", "8"]
    assert [row["seed"] for row in found[:4]] == ["0", "1", "0", "1"]
    alone = run(study(tiny).scenario(swept.study.settings[4], 1)).summary
    assert found[9]["p99_ttft_ms"] == repr(alone["p99_ttft_ms"])
    assert found[9]["saturated"] == str(alone["saturated"]).lower()
    keys = ["engine.max_num_seqs", "workload.classes.chat.arrival.rate", "seed", *alone, "error"]
    assert list(found[0]) == keys


def test_processes_write_the_same_bytes(tiny: Path, tmp_path: Path) -> None:
    sweep(study(tiny, seeds=2), tmp_path / "here")
    sweep(study(tiny, seeds=2), tmp_path / "there", executor=Local(3))
    assert tables(tmp_path / "here") == tables(tmp_path / "there")


def test_a_changed_study_runs_only_what_changed(tiny: Path, tmp_path: Path) -> None:
    sweep(study(tiny), tmp_path / "out")
    counting = Counting()
    swept = sweep(study(tiny, "engine.max_num_seqs=1,2,4,8,16", RATES), tmp_path / "out", executor=counting)
    assert counting.runs == 3
    assert swept.counts() == {"points": 15, "done": 3, "reused": 12, "failed": 0}
    fresh = sweep(study(tiny, "engine.max_num_seqs=1,2,4,8,16", RATES), tmp_path / "other")
    assert fresh.counts()["done"] == 15
    assert tables(tmp_path / "out") == tables(tmp_path / "other")


def test_fresh_runs_all_again(tiny: Path, tmp_path: Path) -> None:
    sweep(study(tiny), tmp_path / "out")
    before = tables(tmp_path / "out")
    assert sweep(study(tiny), tmp_path / "out", fresh=True).counts()["done"] == 12
    assert tables(tmp_path / "out") == before


def test_equal_points_run_once(tiny: Path, tmp_path: Path) -> None:
    counting = Counting()
    swept = sweep(study(tiny, "engine.max_num_seqs=4,4,8"), tmp_path / "out", executor=counting)
    assert counting.runs == 2
    assert swept.counts()["points"] == 3
    first, second, _ = rows(tmp_path / "out")
    assert first == second


def test_a_failed_point_has_its_error_and_stops_no_other(tiny: Path, tmp_path: Path) -> None:
    swept = sweep(study(tiny, "engine.max_num_seqs=4,-1,8"), tmp_path / "out")
    assert swept.counts() == {"points": 3, "done": 2, "reused": 0, "failed": 1}
    _, failed, _ = rows(tmp_path / "out")
    assert "max_num_seqs: must be a whole number" in failed["error"]
    assert failed["completed"] == ""


def test_where_no_run_comes_to_a_result_the_sweep_fails(tiny: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="all 2 runs failed") as caught:
        sweep(study(tiny, "engine.max_num_sequences=4,8"), tmp_path / "out")
    assert "did you mean `max_num_seqs`?" in str(caught.value)
    assert not (tmp_path / "out/table.csv").exists()


def test_a_worker_that_dies_costs_its_own_point_only(tiny: Path, tmp_path: Path) -> None:
    (tmp_path / "deadly.py").write_text(DEADLY)
    vary = f"engine.policy=static,{tmp_path / 'deadly.py'}:Deadly,continuous,orca,preemptive"
    swept = sweep(study(tiny, vary), tmp_path / "out", executor=Local(2))
    assert swept.counts() == {"points": 5, "done": 4, "reused": 0, "failed": 1}
    assert "worker process died" in rows(tmp_path / "out")[1]["error"]


def test_a_folder_with_something_else_is_refused(tiny: Path, tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full/thesis.tex").write_text("x")
    with pytest.raises(InputError, match="thesis"):
        sweep(study(tiny), tmp_path / "full")
    assert [path.name for path in (tmp_path / "full").iterdir()] == ["thesis.tex"]


def test_a_spoilt_point_is_run_again(tiny: Path, tmp_path: Path) -> None:
    sweep(study(tiny), tmp_path / "out")
    before = tables(tmp_path / "out")
    one = sorted((tmp_path / "out/points").iterdir())[0]
    one.write_text('{"summary": ')
    assert sweep(study(tiny), tmp_path / "out").counts()["done"] == 1
    assert tables(tmp_path / "out") == before


def test_an_address_is_the_content_of_a_run(tiny: Path, tmp_path: Path) -> None:
    one = study(tiny).base
    renamed = study_of({**_data(), "name": "other"}, [parse_vary(SEATS)]).base
    assert address(one) == address(renamed)
    assert address(one) != address(study_of({**_data(), "seed": 1}, [parse_vary(SEATS)]).base)
    trace = tmp_path / "trace.csv"
    trace.write_text("arrival_time_s,input_tokens,output_tokens\n0,10,5\n1,10,5\n")
    read = {**_data(), "workload": {"trace": {"path": str(trace)}}}
    before = address(study_of(read, [parse_vary(SEATS)]).base)
    trace.write_text("arrival_time_s,input_tokens,output_tokens\n0,10,5\n1,10,6\n")
    assert address(study_of(read, [parse_vary(SEATS)]).base) != before


def _data() -> dict[str, Any]:
    import yaml

    data: dict[str, Any] = yaml.safe_load(TINY)
    return {"name": "tiny", **data}


COMMAND = "from scenarios.cli.app import main; main()"


@pytest.mark.parametrize("kills", [1, pytest.param(3, marks=pytest.mark.long), pytest.param(5, marks=pytest.mark.slow)])
def test_a_killed_sweep_goes_on_where_it_was(tiny: Path, tmp_path: Path, kills: int) -> None:
    """Killed at random moments, it ends with the bytes of an undisturbed one, and runs nothing twice that was done."""
    sweep(study(tiny, "engine.max_num_seqs=1:12:12", RATES), tmp_path / "whole")
    rng = random.Random(5)
    arguments = ["sweep", str(tiny), "--vary", "engine.max_num_seqs=1:12:12", "--vary", RATES, "--out", "killed"]
    command = [sys.executable, "-c", COMMAND, *arguments, "--workers", "2", "--quiet"]
    there: dict[str, int] = {}
    for _ in range(kills):
        process = subprocess.Popen(
            command, cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)}, stdout=subprocess.DEVNULL
        )
        asked = len(there) + rng.randrange(1, 8)
        while process.poll() is None and len(_points(tmp_path / "killed")) < asked:
            time.sleep(0.005)
        process.send_signal(signal.SIGKILL)
        process.wait()
        for name, stamp in _points(tmp_path / "killed").items():
            assert there.setdefault(name, stamp) == stamp, "a run that had finished ran again"
    swept = sweep(study(tiny, "engine.max_num_seqs=1:12:12", RATES), tmp_path / "killed")
    assert swept.reused >= len(there) > 0
    assert tables(tmp_path / "killed") == tables(tmp_path / "whole")


def _points(folder: Path) -> dict[str, int]:
    if not (folder / "points").is_dir():
        return {}
    return {path.name: path.stat().st_mtime_ns for path in (folder / "points").glob("*.json")}


@pytest.mark.slow
def test_a_ray_cluster_of_two_nodes_writes_the_same_bytes(tiny: Path, tmp_path: Path) -> None:
    ray = pytest.importorskip("ray", reason="needs Ray (pip install 'batchlab[ray]')")
    from ray.cluster_utils import Cluster

    from scenarios.studies.run_sweep import Ray

    sweep(study(tiny, seeds=2), tmp_path / "here")
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
    cluster.add_node(num_cpus=1)
    try:
        sweep(study(tiny, seeds=2), tmp_path / "there", executor=Ray(cluster.address))
    finally:
        ray.shutdown()
        cluster.shutdown()
    assert tables(tmp_path / "here") == tables(tmp_path / "there")


def test_a_sweep_is_read_back_from_its_folder(tiny: Path, tmp_path: Path) -> None:
    folder = tmp_path / "out"
    done = sweep(study(tiny, "engine.max_num_seqs=1,4,-1", seeds=2), folder)
    found = read_sweep(folder)
    assert found.study.settings == done.study.settings
    assert found.counts() == {"points": 6, "done": 0, "reused": 4, "failed": 2}
    for (setting, seed, outcome), (own, own_seed, was) in zip(found.rows, done.rows, strict=True):
        assert (setting, seed, outcome.error) == (own, own_seed, was.error)
        known = {key: value for key, value in outcome.summary.items() if value is not None}
        assert known == {key: value for key, value in was.summary.items() if value is not None}
    table = folder / "table.csv"
    lines = table.read_text().splitlines(keepends=True)
    for text, wrong in (
        ("".join(lines[:-1]), "has 5 rows, and the study beside it 6 runs"),
        ("seed\n0\n", "it is no table of a sweep"),
        (lines[0] + "1\n", "a row ends too soon"),
    ):
        table.write_text(text)
        with pytest.raises(InputError, match=wrong):
            read_sweep(folder)
    table.unlink()
    with pytest.raises(InputError, match="is not finished"):
        read_sweep(folder)
