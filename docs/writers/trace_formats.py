"""The table of docs/traces.md: every trace format, its times, and what else is read of it."""

import re
from pathlib import Path

from scenarios.traces.formats import trace_formats

_HEAD = "| format | times | what else is read |\n| --- | --- | --- |\n"


def markdown() -> str:
    """The formats as a table, by their names."""
    rows = ((name, each.times, each.also) for name, each in trace_formats().items())
    return _HEAD + "".join(f"| `{name}` | {times} | {also}{' ' if also else ''}|\n" for name, times, also in rows)


def write(page: Path) -> None:
    """Put the table in the place of the one that stands in a page."""
    text = page.read_text(encoding="utf-8")
    written = re.sub(re.escape(_HEAD) + r"(?:\|.*\n)*", lambda _: markdown(), text)
    page.write_text(written, encoding="utf-8", newline="\n")
