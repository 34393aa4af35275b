"""Joins in native traces: read, written, moved, cut, and refused with file, line and key."""

import re
from pathlib import Path

import numpy as np
import pytest

from scenarios.generate.arrivals import with_arrivals
from scenarios.schema.arrivals.poisson import PROCESS
from scenarios.traces import TraceOptions, read_trace
from scenarios.traces.convert import write_native
from simulator.errors import InputError
from simulator.workload import Workload

HEADER = "arrival_time_s,input_tokens,output_tokens,request_id,after_request_ids,delay_s,task_id\n"
ROWS = "0,9,2,a,,,t\n1,9,2,b,a,0.5,t\n1,9,2,c,a,,t\n4,9,2,d,b c a,1,t\n5,9,2,e,,,\n6,9,2,f,d e,,\n"


def trace(tmp_path: Path, rows: str) -> Path:
    path = tmp_path / "trace.csv"
    path.write_text(HEADER + rows)
    return path


def waits(workload: Workload) -> dict[str, set[str]]:
    """What each request waits for, by name."""
    assert workload.after_row is not None
    assert workload.also_after is not None
    return {
        workload.request_id(row): {workload.request_id(each) for each in (before, *others) if each >= 0}
        for row, (before, others) in enumerate(zip(workload.after_row.tolist(), workload.also_after, strict=True))
    }


WAITS = {"a": set(), "b": {"a"}, "c": {"a"}, "d": {"a", "b", "c"}, "e": set(), "f": {"d", "e"}}


@pytest.mark.parametrize("name", ["again.csv", "again.jsonl.gz"])
def test_joins_are_read_and_written(tmp_path: Path, name: str) -> None:
    workload = read_trace(trace(tmp_path, ROWS))
    assert waits(workload) == WAITS
    assert workload.task_ids == ["t", "t", "t", "t", None, None]
    write_native(workload, tmp_path / name)
    again = read_trace(tmp_path / name)
    assert waits(again) == WAITS
    assert again.delay_s is not None
    assert again.delay_s.tolist() == [0, 0.5, 0, 1, 0, 0]
    assert again.task_ids == workload.task_ids


@pytest.mark.parametrize(
    "options",
    [TraceOptions(loop=2), TraceOptions(copies=2.5), TraceOptions(jitter_s=3.0), TraceOptions(rate_scale=2.0)],
)
def test_joins_stay_together_when_a_trace_is_moved(tmp_path: Path, options: TraceOptions) -> None:
    """f joins two requests that wait for nothing: they move as one."""
    workload = read_trace(trace(tmp_path, ROWS), options)
    found = waits(workload)
    for name, others in found.items():
        copy = name[1:]
        assert others == {f"{each}{copy}" for each in WAITS[name[0]]}
    assert workload.also_after is not None
    assert all(other < row for row, others in enumerate(workload.also_after) for other in others)
    assert workload.after_row is not None
    assert np.all(workload.after_row < np.arange(len(workload)))


def test_joins_of_drawn_arrivals(tmp_path: Path) -> None:
    for seed in range(20):
        workload = read_trace(trace(tmp_path, ROWS))
        moved = with_arrivals(workload, PROCESS.model_validate({"process": "poisson", "rate": 0.1}), seed)
        assert waits(moved) == WAITS
        assert moved.also_after is not None
        assert all(other < row for row, others in enumerate(moved.also_after) for other in others)


def test_a_part_waits_for_what_it_has(tmp_path: Path) -> None:
    workload = read_trace(trace(tmp_path, ROWS), TraceOptions(start_s=1.0))
    assert waits(workload)["d"] == {"b", "c"}
    assert "3 answers that requests wait for are not in this part: not waited for" in workload.notes


@pytest.mark.parametrize(
    ("rows", "line", "what", "hint"),
    [
        ("0,9,2,alpha,,,\n1,9,2,b,alpha alpah,,\n", 3, "'alpah', which is no request", "did you mean alpha?"),
        ("0,9,2,a,,,\n1,9,2,b,a b,,\n", 3, "'b', which is itself", "leave it out"),
        ("0,9,2,a,b,,\n1,9,2,b,,,\n", 2, "'b', which arrives later", "(line 3)"),
        ("0,9,2,a,c,,\n1,9,2,b,a,,\n2,9,2,c,b,,\n", 2, "'c', which waits for it in turn", "in a circle would wait"),
    ],
)  # fmt: skip
def test_each_wrong_name_is_refused(tmp_path: Path, rows: str, line: int, what: str, hint: str) -> None:
    path = trace(tmp_path, rows)
    message = f"{path}:{line}: after_request_ids: the request waits for {what}"
    with pytest.raises(InputError, match=re.escape(message)) as refused:
        read_trace(path)
    assert hint in str(refused.value)


def test_csv_refuses_names_with_spaces(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    row = '{"arrival_time_s": %d, "input_tokens": 9, "output_tokens": 2, "request_id": "%s"%s}\n'
    path.write_text(row % (0, "a b", "") + row % (0, "c", "") + row % (1, "d", ', "after_request_ids": ["a b", "c"]'))
    workload = read_trace(path)
    assert waits(workload)["d"] == {"a b", "c"}
    with pytest.raises(InputError, match="CSV cannot hold after_request_ids whose names have spaces"):
        write_native(workload, tmp_path / "out.csv")
    write_native(workload, tmp_path / "out.jsonl")
