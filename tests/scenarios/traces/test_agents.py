"""Traces of agents: Dynamo's agentic layout and TraceLab's rounds, with every value known."""

from pathlib import Path

import pytest

from scenarios.traces import TraceOptions, read_trace
from scenarios.traces.convert import convert_trace
from scenarios.traces.inspect import inspect_trace
from simulator.errors import InputError
from simulator.request import PromptContent
from simulator.workload import Workload
from tests.scenarios.traces.test_joins import waits
from tests.scenarios.traces.test_read import FIXTURES

DYNAMO, TRACELAB = FIXTURES / "dynamo_agentic.jsonl", FIXTURES / "tracelab_rounds.jsonl"


def check_dynamo(workload: Workload) -> None:
    """look-2 has no time of its own: it stands at that of what it waits for, and its delay."""
    assert list(workload.request_ids or ()) == ["plan", "look-2", "look-1", "sum"]
    assert workload.arrival_s.tolist() == [0.0, 0.005, 1.1005, 7.5]
    assert workload.input_tokens.tolist() == [300, 200, 130, 400]
    assert workload.output_tokens.tolist() == [40, 60, 20, 50]
    assert waits(workload) == {
        "plan": set(), "look-1": {"plan"}, "look-2": {"plan"}, "sum": {"plan", "look-1", "look-2"}
    }  # fmt: skip
    assert workload.delay_s is not None
    assert workload.delay_s.tolist() == [0.0, 0.005, 0.0035, 1.20225]
    assert list(workload.session_ids or ()) == ["run:planner", "run:two", "run:one", "run:planner"]
    assert list(workload.task_ids or ()) == ["plan"] * 4
    assert (workload.content or ())[3] == PromptContent((1, 2, 3, 6), 128)


def test_dynamo_is_recognised_read_and_converted(tmp_path: Path) -> None:
    workload = read_trace(DYNAMO)
    assert workload.notes[0].startswith("dynamo (JSON Lines): 4 requests out of 4 rows")
    check_dynamo(workload)
    assert inspect_trace(DYNAMO).format == "dynamo"
    convert_trace(DYNAMO, tmp_path / "native.jsonl")
    check_dynamo(read_trace(tmp_path / "native.jsonl"))
    convert_trace(DYNAMO, tmp_path / "moved.csv", TraceOptions(rate_scale=0.5))
    assert read_trace(tmp_path / "moved.csv").arrival_s.tolist() == [0.0, 0.01, 2.201, 15.0]


def test_dynamo_names_what_is_unknown(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text('{"request_id": "a", "input_length": 9, "output_length": 2, "timestamp": 0, "wait_for": ["b"]}\n')
    with pytest.raises(InputError, match=r"trace.jsonl:1: after_request_ids: the request waits for 'b', which is no"):
        read_trace(path)


def check_tracelab(workload: Workload) -> None:
    """Tools take 1.5 s, the person a minute; the context was compacted in between."""
    assert list(workload.request_ids or ()) == ["claude:s1/0", "claude:s1/1", "claude:s1/2"]
    assert workload.arrival_s.tolist() == [0.0, 5.0, 66.0]
    assert workload.delay_s is not None
    assert workload.delay_s.tolist() == [0.0, 1.5, 60.0]
    assert workload.after_row is not None
    assert workload.after_row.tolist() == [-1, 0, 1]
    assert list(workload.task_ids or ()) == ["claude:s1:1", "claude:s1:1", "claude:s1:2"]
    assert workload.class_names == ("m-1",)
    assert list(workload.content or ()) == [
        PromptContent(prefix_group="claude:s1#1", prefix_tokens=1200),
        PromptContent(prefix_group="claude:s1#1", prefix_tokens=1500),
        PromptContent(prefix_group="claude:s1#2", prefix_tokens=400),
    ]


def test_tracelab_is_recognised_read_and_converted(tmp_path: Path) -> None:
    workload = read_trace(TRACELAB)
    assert "skipped 1 row: output_tokens is 0 (line 3)" in workload.notes
    check_tracelab(workload)
    assert inspect_trace(TRACELAB).format == "tracelab"
    convert_trace(TRACELAB, tmp_path / "native.csv.gz")
    check_tracelab(read_trace(tmp_path / "native.csv.gz"))


@pytest.mark.parametrize(
    ("events", "reason"),
    [
        ("null", "timing_events is not a list of events"),
        ('[{"event_type": "user_message", "timestamp": "2026-06-01T05:40:20Z"}]', "has no output of the model"),
        ('[{"event_type": "text", "timestamp": "soon"}]', "timestamp is not a date-time"),
    ],
)  # fmt: skip
def test_each_bad_round_says_why(tmp_path: Path, events: str, reason: str) -> None:
    path = tmp_path / "trace.jsonl"
    row = '{"session_id": "s", "input_tokens_total": 9, "output_tokens": 2, "timing_events": %s}\n'
    path.write_text(row % events)
    with pytest.raises(InputError, match=reason):
        read_trace(path, TraceOptions(strict=True))
