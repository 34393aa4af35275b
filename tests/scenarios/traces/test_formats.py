"""What every trace format owes, and what the seam allows: rows that are no lines."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from docs.writers.trace_formats import markdown
from scenarios.traces import detect as detection
from scenarios.traces import formats, read_trace
from scenarios.traces.format import Head, OpenTrace, Signature, TraceFormat
from scenarios.traces.formats import trace_formats
from scenarios.traces.rows import Row, RowError, ticks_ns, tokens
from tests.scenarios.traces.test_read import jsonl, notes, write


def test_a_format_is_a_file_of_the_folder() -> None:
    files = {path.stem for path in Path(formats.__path__[0]).glob("*.py")} - {"__init__"}
    assert {name.replace("-", "_") for name in trace_formats()} == files
    assert list(trace_formats()) == sorted(trace_formats())
    assert {"azure", "guidellm", "llmservingsim", "mooncake", "native", "run"} <= set(trace_formats())


def test_the_page_of_formats_has_every_one() -> None:
    page = (Path(formats.__path__[0]).parents[2] / "docs" / "traces.md").read_text(encoding="utf-8")
    assert f"\n{markdown()}\n" in page, "make pages PAGES=traces"


@pytest.mark.parametrize("name", trace_formats())
def test_every_format_says_how_it_is_known_and_what_its_times_are(name: str) -> None:
    each = trace_formats()[name]
    assert each.csv or each.json or each.begins, "nothing would recognise it"
    assert each.times
    assert not each.csv or all(set(signature.has) <= set(each.columns) for signature in each.csv)
    for source in each.sources:
        assert source.address.startswith("https://")
        assert source.address.endswith(source.file)


def open_calls(head: Head) -> OpenTrace:
    """Conversations, one a line, each a list of calls: rows nested in a line, times from each conversation's start."""

    def rows() -> Iterator[tuple[int, tuple[int, dict[str, Any]]]]:
        for line, text in head.rows:
            conversation = json.loads(text)
            for call in conversation["calls"]:
                yield line, (conversation["start"], call)

    def parse(item: tuple[int, dict[str, Any]]) -> Row:
        start, call = item
        if "text" in call:
            raise RowError("a call without token counts")
        arrival = ticks_ns(start + call["at"], "at", 1_000_000_000)
        return arrival, tokens(call["in"], "in"), tokens(call["out"], "out"), {"session_id": "s"}

    return OpenTrace(rows(), parse, "ticks", "s", remarks=lambda: ["calls of conversations"])


def test_rows_may_be_nested_in_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = TraceFormat("calls", "calls", open_calls, json=(Signature(("start", "calls")),), times="at is in seconds")
    known = {**trace_formats(), "calls": calls}
    for module in (detection, formats):
        monkeypatch.setattr(module, "trace_formats", lambda: known)
    first = {"start": 100, "calls": [{"at": 0, "in": 5, "out": 2}, {"at": 7, "in": 9, "out": 3}, {"text": "x"}]}
    second = {"start": 103, "calls": [{"at": 0, "in": 4, "out": 1}]}
    workload = read_trace(write(tmp_path, jsonl(first, second)))
    assert workload.arrival_s.tolist() == [0, 3, 7]
    assert workload.input_tokens.tolist() == [5, 4, 9]
    assert workload.session_ids == ["s", "s", "s"]
    assert "skipped 1 row: a call without token counts (line 1)" in notes(workload)
    assert "calls of conversations" in notes(workload)
