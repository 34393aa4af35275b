"""LLMServingSim's workloads: one request a row, arrivals in nanoseconds.

Its own files are JSON Lines with `arrival_time_ns`, `input_toks`, `output_toks` and, where content matters,
`input_tok_ids` and `output_tok_ids` (casys-kaist/LLMServingSim, workloads/*.jsonl). The CSV has the same columns and
`prefix_block_ids16` in place of the token ids: one id for each full block of 16 prompt tokens, equal ids meaning equal
tokens up to and including that block. Rows with `sub_requests` are closed loops (each call waits for the one before)
and are not read.
"""

from __future__ import annotations

from typing import Any

from scenarios.traces.format import Head, OpenTrace, Signature, TraceFormat
from scenarios.traces.rows import ParseRow, Row, RowError, csv_fields, integers, json_object, ticks_ns, tokens

REQUIRED = ("arrival_time_ns", "input_toks", "output_toks")
BLOCK_IDS = "prefix_block_ids16"
BLOCK_SIZE = 16
COLUMNS = (*REQUIRED, BLOCK_IDS)
_TOKEN_IDS = {
    "prompt_token_ids": ("input_tok_ids", "input_toks"),
    "output_token_ids": ("output_tok_ids", "output_toks"),
}


def _open(head: Head) -> OpenTrace:
    return OpenTrace(head.rows, _csv_parser(head) if head.kind == "csv" else _parse_json, "ticks", "ns")


def _csv_parser(head: Head) -> ParseRow:
    positions, width = head.positions, len(head.names)
    arrival, inputs, outputs = (positions[name] for name in REQUIRED)
    blocks = positions.get(BLOCK_IDS)

    def parse(text: str) -> Row:
        fields = csv_fields(text, width)
        ids = () if blocks is None else integers(fields[blocks], BLOCK_IDS)
        return (
            ticks_ns(fields[arrival], "arrival_time_ns", 1),
            tokens(fields[inputs], "input_toks"),
            tokens(fields[outputs], "output_toks"),
            {"block_hashes": ids, "hash_block_size": BLOCK_SIZE} if ids else None,
        )

    return parse


def _parse_json(text: str) -> Row:
    fields = json_object(text)
    if "sub_requests" in fields:
        raise RowError("a session of sub_requests (closed loop)")
    return (
        ticks_ns(fields.get("arrival_time_ns"), "arrival_time_ns", 1),
        tokens(fields.get("input_toks"), "input_toks"),
        tokens(fields.get("output_toks"), "output_toks"),
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
    units=("ns",),
)
