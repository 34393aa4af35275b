"""Vidur's traces: arrived_at in seconds, num_prefill_tokens, num_decode_tokens."""

from __future__ import annotations

from scenarios.traces.format import Signature, TraceFormat

FORMAT = TraceFormat(
    name="vidur",
    title="Vidur",
    csv=(Signature(("arrived_at", "num_prefill_tokens", "num_decode_tokens")),),
)
