"""BurstGPT: seconds from 0:00 of the first day, Request tokens, Response tokens (0 where a request failed)."""

from __future__ import annotations

from scenarios.traces.format import Signature, TraceFormat

FORMAT = TraceFormat(
    name="burstgpt",
    title="BurstGPT",
    csv=(Signature(("Timestamp", "Request tokens", "Response tokens")),),
)
