"""OpenAI's batch requests: messages and a cap on the answer, without times and token counts."""

from __future__ import annotations

from scenarios.traces.format import Signature, TraceFormat

FORMAT = TraceFormat(
    name="openai-batch",
    title="OpenAI batch requests (text, no token counts)",
    json=(Signature(("custom_id", "method", "url", "body")),),
)
