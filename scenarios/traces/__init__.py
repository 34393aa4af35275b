"""Request traces: what formats are read, what a trace holds, and how one is written."""

from __future__ import annotations

from scenarios.traces.options import TraceOptions
from scenarios.traces.read import read_trace

__all__ = ["TraceOptions", "read_trace"]
