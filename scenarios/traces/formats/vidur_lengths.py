"""Vidur's tables of lengths: num_prefill_tokens and num_decode_tokens without arrival times."""

from __future__ import annotations

from scenarios.traces.format import Signature, TraceFormat

FORMAT = TraceFormat(
    name="vidur-lengths",
    title="Vidur lengths (no arrival times)",
    csv=(Signature(("num_prefill_tokens", "num_decode_tokens"), lacks=("arrived_at",)),),
)
