"""GuideLLM's trace_synthetic as CSV."""

from __future__ import annotations

from scenarios.traces.format import Signature, TraceFormat

FORMAT = TraceFormat(
    name="guidellm-csv",
    title="GuideLLM trace_synthetic as CSV",
    csv=(Signature(("timestamp", "input_length", "output_length")),),
)
