"""AIPerf's dialect of Mooncake's layout: turns a `delay` after the answer before them, or prompts as `text_input`."""

from __future__ import annotations

from scenarios.traces.format import Signature, TraceFormat

FORMAT = TraceFormat(
    name="aiperf",
    title="AIPerf's Mooncake dialect (`delay`, `text_input`)",
    json=(Signature(("delay",), lacks=("timestamp",)), Signature(("text_input",), lacks=("input_length",))),
)
