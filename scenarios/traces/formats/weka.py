"""Weka's conversations: `t` in seconds from the start of each, `in`, `out`; flat, or nested in `requests`."""

from __future__ import annotations

from scenarios.traces.format import Signature, TraceFormat

FORMAT = TraceFormat(
    name="weka",
    title="Weka conversations (`t`, `in`, `out`)",
    json=(Signature(("t", "in", "out")), Signature(("id", "requests"))),
)
