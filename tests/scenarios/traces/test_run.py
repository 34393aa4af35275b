"""A run's requests.csv.gz read as a trace: the same requests, and on them the same run."""

import gzip
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import scenarios
from scenarios.assembly.workloads import build_workload
from scenarios.traces import TraceOptions, read_trace
from scenarios.traces.inspect import inspect_trace
from simulator.errors import InputError
from tests.scenarios.traces.test_read import notes, write

SCENARIO: dict[str, Any] = {
    "name": "there-and-back",
    "seed": 5,
    "hardware": {"num_gpu_blocks": 400},
    "cost": {"kind": "linear", "base_s": 0.005, "per_token_s": 2e-5, "per_context_token_s": 5e-7},
    "workload": {
        "requests": 300,
        "arrival": {"process": "gamma", "rate": 20, "cv": 2.0},
        "classes": [
            {
                "name": 'chat, in "quotes"',
                "input": {"dist": "uniform", "min": 10, "max": 900},
                "output": {"dist": "uniform", "min": 1, "max": 60},
                "max_tokens": 70,
                "priority": -1,
            },
            {
                "name": "batch",
                "input": {"dist": "fixed", "value": 300},
                "output": {"dist": "uniform", "min": 1, "max": 200},
            },
        ],
    },
    "engine": {"policy": "preemptive", "max_num_seqs": 16, "max_num_batched_tokens": 512},
}
HEADER = "request_id,class,status,arrival_s,input_tokens,output_tokens,max_tokens,priority\n"


def test_a_run_replayed_from_its_own_table_is_the_same_run(tmp_path: Path) -> None:
    first = scenarios.run(SCENARIO)
    assert first.summary["preemptions"] > 0  # so that order, priorities and caps all matter
    table = first.save(tmp_path / "first") / "requests.csv.gz"
    workload, again = build_workload(first.scenario), read_trace(table)
    for name in ("arrival_s", "input_tokens", "output_tokens", "max_tokens", "priority"):
        assert np.array_equal(getattr(workload, name), getattr(again, name)), name
    names = [workload.class_names[index] for index in workload.class_index.tolist()]
    assert [again.class_names[index] for index in again.class_index.tolist()] == names
    second = scenarios.run({**SCENARIO, "workload": {"trace": {"path": str(table)}}})
    folder = second.save(tmp_path / "second")
    for file in ("requests.csv.gz", "steps.csv.gz", "summary.json"):
        assert (folder / file).read_bytes() == (tmp_path / "first" / file).read_bytes(), file


def test_it_is_known_by_its_columns_and_says_nothing_of_the_others(tmp_path: Path) -> None:
    table = scenarios.run(SCENARIO).save(tmp_path / "run") / "requests.csv.gz"
    plain = write(tmp_path, gzip.decompress(table.read_bytes()), "anything")
    assert inspect_trace(plain).format == "run"
    assert "columns not read" not in notes(read_trace(plain))
    assert len(read_trace(plain, TraceOptions(format="run"))) == 300


def test_requests_that_did_not_finish_are_left_out_and_counted(tmp_path: Path) -> None:
    rows = (
        "a,x,finished,0.5,10,3,9,0\nb,x,rejected,0.75,99,0,9,0\nc,x,unfinished,1.0,10,2,9,1\nd,y,finished,1.5,7,1,9,2\n"
    )
    path = write(tmp_path, HEADER + rows)
    workload = read_trace(path)
    assert workload.request_ids == ["a", "d"]
    assert workload.arrival_s.tolist() == [0.5, 1.5]
    assert (workload.max_tokens.tolist(), workload.priority.tolist()) == ([9, 9], [0, 2])
    assert workload.class_names == ("x", "y")
    said = "skipped 2 rows: status is not `finished`: the length of the answer is not known (lines 3, 4)"
    assert said in notes(workload)
    with pytest.raises(InputError, match=r":3: status is not `finished`"):
        read_trace(path, TraceOptions(strict=True))
