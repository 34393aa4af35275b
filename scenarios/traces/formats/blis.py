"""BLIS's tracev2: CSV in microseconds, described by a YAML file beside it."""

from __future__ import annotations

from scenarios.traces.format import Signature, TraceFormat

FORMAT = TraceFormat(
    name="blis",
    title="BLIS tracev2",
    csv=(Signature(("request_id", "arrival_time_us", "input_tokens", "output_tokens")),),
)
