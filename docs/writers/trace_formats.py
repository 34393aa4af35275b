"""The table of docs/traces.md: every trace format, its times, and what else is read of it."""

from docs.writers.tables import texts
from scenarios.traces.formats import trace_formats


def markdown() -> str:
    """The formats as a table, by their names."""
    rows = ((f"`{name}`", each.times, each.also) for name, each in trace_formats().items())
    return "\n".join(texts(("format", "times", "what else is read"), rows)) + "\n"
