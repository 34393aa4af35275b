"""splitwise-sim's traces: arrival_timestamp in seconds, prompt_size, token_size."""

from __future__ import annotations

from scenarios.traces.format import Signature, TraceFormat

FORMAT = TraceFormat(
    name="splitwise",
    title="splitwise-sim",
    csv=(Signature(("request_id", "request_type", "arrival_timestamp", "prompt_size", "token_size")),),
)
