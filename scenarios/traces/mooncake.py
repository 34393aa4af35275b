"""Mooncake's traces: JSON Lines with timestamp (ms), input_length, output_length and hash_ids.

`hash_ids` name the prompt's blocks of 512 tokens, the last one perhaps partial; equal ids mean equal content up to
and including that block. GuideLLM's trace_synthetic has the same keys without hash_ids, and seconds.
"""

from __future__ import annotations

from typing import Any

from scenarios.traces.rows import ParseRow, Row, RowError, integers, json_object, ticks_ns, tokens, word


def row_parser(unit_ns: int) -> ParseRow:
    """A parser of lines whose timestamps count in `unit_ns` nanoseconds."""

    def parse(text: str) -> Row:
        fields = json_object(text)
        if "delay" in fields and fields.get("timestamp") is None:
            raise RowError("no timestamp but a delay after the answer before it (closed loop)")
        return (
            ticks_ns(fields.get("timestamp"), "timestamp", unit_ns),
            tokens(fields.get("input_length"), "input_length"),
            tokens(fields.get("output_length"), "output_length"),
            _extra(fields),
        )

    return parse


def _extra(fields: dict[str, Any]) -> dict[str, Any] | None:
    extra: dict[str, Any] = {}
    hashes = fields.get("hash_ids")
    if hashes is not None:
        extra["block_hashes"] = integers(hashes, "hash_ids")
    session = fields.get("session_id")
    if session is not None:
        extra["session_id"] = word(session, "session_id")
    return extra or None
