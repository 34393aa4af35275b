"""Logs of any other layout: `columns` says which native column each of theirs is."""

from pathlib import Path

import pytest

import scenarios
from scenarios.assembly.workloads import build_workload
from scenarios.traces import TraceOptions, read_trace
from simulator.errors import InputError
from simulator.request import Request
from tests.command import batchlab
from tests.scenarios.traces.test_read import jsonl, notes, write

LOG = "when;x,prompt,answer,input_tokens,who\n".replace(";", "_") + "1000,5,6,99,a\n1250,7,8,99,b\n"
NAMES = {"arrival_time_s": "when_x", "input_tokens": "prompt", "output_tokens": "answer", "class": "who"}
EXPECTED = [Request(0, "0", 0.0, 5, 6, 8, 0, "a"), Request(1, "1", 0.25, 7, 8, 8, 0, "b")]


def test_csv_in_milliseconds_from_any_origin(tmp_path: Path) -> None:
    text = LOG.replace("1000", "1700000000000").replace("1250", "1700000000250")
    workload = read_trace(write(tmp_path, text), TraceOptions(columns=NAMES, time_unit="ms"))
    assert list(workload.requests()) == EXPECTED
    assert "native (CSV): 2 requests" in notes(workload)
    seconds = read_trace(write(tmp_path, LOG), TraceOptions(columns=NAMES))
    assert seconds.arrival_s.tolist() == [1000, 1250]


def test_json_lines(tmp_path: Path) -> None:
    names = {"arrival_time_s": "t", "input_tokens": "p", "output_tokens": "a", "class": "who"}
    text = jsonl({"t": 0, "p": 5, "a": 6, "input_tokens": 99, "class": "z", "who": "a"}, {"t": 0.25, "p": 7, "a": 8})
    workload = read_trace(write(tmp_path, text + "[1]\n"), TraceOptions(columns=names))
    assert workload.input_tokens.tolist() == [5, 7]
    assert [request.class_name for request in workload.requests()] == ["a", "default"]
    assert "skipped 1 row: not a JSON object (line 3)" in notes(workload)


def test_in_a_scenario_and_on_the_command_line(tmp_path: Path) -> None:
    path = write(tmp_path, LOG, "log.csv")
    trace = {"path": str(path), "columns": NAMES, "time_unit": "ms"}
    workload = build_workload(scenarios.load({"workload": {"trace": trace}}))
    assert workload.input_tokens.tolist() == [5, 7]
    pairs = ",".join(f"{native}={name}" for native, name in NAMES.items())
    done = batchlab("trace", "convert", "log.csv", "native.csv", "--columns", pairs, "--time-unit", "ms", cwd=tmp_path)
    assert done.code == 0
    text = "arrival_time_s,input_tokens,output_tokens,class\n1.0,5,6,a\n1.25,7,8,b\n"
    assert (tmp_path / "native.csv").read_text() == text


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ("arrival_s=when_x", "columns: 'arrival_s' is not a native column\n  did you mean arrival_time_s?"),
        ("arrival_time_s=when", "columns: there is no 'when', which should be arrival_time_s\n"),
        ("arrival_time_s=when_x,input_tokens=prompt", "not a trace of the format native: no output_tokens"),
        ("input_tokens=prompt,output_tokens=prompt", "'prompt' is given for two native columns"),
        ("arrival_time_s", "--columns: arrival_time_s is not NATIVE=NAME"),
    ],
)
def test_wrong_columns(columns: str, said: str, tmp_path: Path) -> None:
    write(tmp_path, LOG, "log.csv")
    done = batchlab("trace", "inspect", "log.csv", "--columns", columns, cwd=tmp_path)
    assert done.code == 2
    assert said in done.err


def test_columns_make_a_native_trace(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="columns: they are for native traces, not for the format azure"):
        TraceOptions(format="azure", columns=NAMES)
    with pytest.raises(InputError, match=r"columns\.x: 'x' is not a native column"):
        scenarios.load({"workload": {"trace": {"path": str(write(tmp_path, LOG)), "columns": {"x": "y"}}}})
