"""LLMServingSim's workloads: one request a row, arrivals in nanoseconds.

Its own files are JSON Lines with `arrival_time_ns`, `input_toks`, `output_toks` and, where content matters,
`input_tok_ids` and `output_tok_ids` (casys-kaist/LLMServingSim, workloads/*.jsonl). The CSV has the same columns and
`prefix_block_ids16` in place of the token ids: one id for each full block of 16 prompt tokens, equal ids meaning equal
tokens up to and including that block. A row of JSON may hold a session instead: its `arrival_time_ns` and
`sub_requests`, calls of an agent of which each waits for the answer before it and then for the tool, whose
`tool_duration_ns` stands with the call that asked for it. Both kinds may mix in a file.
"""

from collections.abc import Iterator
from typing import Any

from scenarios.traces.format import Head, OpenTrace, Signature, TraceFormat
from scenarios.traces.rows import (
    ParseRow,
    Row,
    RowError,
    Turns,
    csv_fields,
    integers,
    json_object,
    ticks_ns,
    tokens,
    word,
)

REQUIRED = ("arrival_time_ns", "input_toks", "output_toks")
BLOCK_IDS = "prefix_block_ids16"
BLOCK_SIZE = 16
COLUMNS = (*REQUIRED, BLOCK_IDS)
_TOKEN_IDS = {
    "prompt_token_ids": ("input_tok_ids", "input_toks"),
    "output_token_ids": ("output_tok_ids", "output_toks"),
}


def _open(head: Head) -> OpenTrace:
    if head.kind == "csv":
        return OpenTrace(head.rows, _csv_parser(head), "ticks", "ns")
    rows = _JsonRows(head)
    return OpenTrace(rows.items(), rows.parse, "ticks", "ns", remarks=rows.turns.remarks)


def _csv_parser(head: Head) -> ParseRow:
    positions, width, answer = head.positions, len(head.names), head.answer
    arrival, inputs, outputs = (positions[name] for name in REQUIRED)
    blocks = positions.get(BLOCK_IDS)

    def parse(text: str) -> Row:
        fields = csv_fields(text, width)
        ids = () if blocks is None else integers(fields[blocks], BLOCK_IDS)
        return (
            ticks_ns(fields[arrival], "arrival_time_ns", 1),
            tokens(fields[inputs], "input_toks"),
            answer(fields[outputs], "output_toks"),
            {"block_hashes": ids, "hash_block_size": BLOCK_SIZE} if ids else None,
        )

    return parse


class _JsonRows:
    """The requests of a file of JSON Lines: flat rows, and the calls of sessions."""

    def __init__(self, head: Head) -> None:
        self._lines = head.rows
        self._answer = head.answer
        self.turns = Turns()
        self._tool_ns: dict[str, int] = {}  # how long the tool runs that a session's last call asked for

    def items(self) -> Iterator[tuple[int, Any]]:
        """A flat row's text, or a session and one of its calls."""
        for line, text in self._lines:
            if '"sub_requests"' not in text:
                yield line, text
                continue
            try:
                session = json_object(text)
            except RowError:
                yield line, text  # says so again when it is parsed
                continue
            calls = session.get("sub_requests")
            for call in calls if type(calls) is list else [calls]:
                yield line, (session, call)

    def parse(self, item: Any) -> Row:
        if type(item) is str:
            return self._flat(json_object(item))
        session, call = item
        if type(call) is not dict:
            raise RowError("sub_requests is not a list of calls", call)
        name = word(session.get("session_id"), "session_id")
        start = ticks_ns(session.get("arrival_time_ns"), "arrival_time_ns", 1)
        inputs = tokens(call.get("input_toks"), "input_toks")
        outputs = self._answer(call.get("output_toks"), "output_toks")
        tool = ticks_ns(call.get("tool_duration_ns") or 0, "tool_duration_ns", 1)
        content = _token_ids(call)
        wait = self._tool_ns.get(name)
        arrival, extra = self.turns.turn(name, start if wait is None else None, wait)
        self._tool_ns[name] = tool
        return arrival, inputs, outputs, extra | content

    def _flat(self, fields: dict[str, Any]) -> Row:
        return (
            ticks_ns(fields.get("arrival_time_ns"), "arrival_time_ns", 1),
            tokens(fields.get("input_toks"), "input_toks"),
            self._answer(fields.get("output_toks"), "output_toks"),
            _token_ids(fields) or None,
        )


def _token_ids(fields: dict[str, Any]) -> dict[str, Any]:
    """Token ids as far as the row has as many of them as it counts tokens."""
    found = {}
    for name, (listed, counted) in _TOKEN_IDS.items():
        if fields.get(listed):
            ids = integers(fields[listed], listed)
            if len(ids) == fields.get(counted):
                found[name] = ids
    return found


FORMAT = TraceFormat(
    name="llmservingsim",
    title="LLMServingSim's workloads",
    open=_open,
    csv=(Signature(REQUIRED),),
    json=(Signature(REQUIRED), Signature(("session_id", "sub_requests"))),
    columns=COLUMNS,
    times="arrival_time_ns is in nanoseconds",
    also="token ids or block ids; sessions of calls with the durations of tools",
    units=("ns",),
)
