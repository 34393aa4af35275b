"""The table of docs/traces.md: every trace format, its times, and what else is read of it."""

from scenarios.traces.formats import trace_formats

_HEAD = "| format | times | what else is read |\n| --- | --- | --- |\n"


def markdown() -> str:
    """The formats as a table, by their names."""
    rows = ((name, each.times, each.also) for name, each in trace_formats().items())
    return _HEAD + "".join(f"| `{name}` | {times} | {also}{' ' if also else ''}|\n" for name, times, also in rows)
