"""ShareGPT's conversations: a JSON array of texts, without times and token counts."""

from __future__ import annotations

import re

from scenarios.traces.format import TraceFormat

FORMAT = TraceFormat(
    name="sharegpt",
    title="ShareGPT conversations (text, no token counts)",
    begins=re.compile(r'\s*\[.*"conversations"', re.DOTALL),
)
