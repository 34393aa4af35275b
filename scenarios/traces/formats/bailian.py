"""Bailian's traces of Qwen: JSON Lines with chat_id and parent_chat_id, seconds, hashes of blocks of 16 tokens."""

from __future__ import annotations

from scenarios.traces.format import Signature, TraceFormat

FORMAT = TraceFormat(
    name="bailian",
    title="Bailian (Qwen, session traces in seconds)",
    json=(Signature(("chat_id", "parent_chat_id")),),
)
