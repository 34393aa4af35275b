"""Request traces: formats, reading, facts, writing."""

from scenarios.traces.options import TraceOptions
from scenarios.traces.read import read_trace

__all__ = ["TraceOptions", "read_trace"]
