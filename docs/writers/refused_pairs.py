"""The table of docs/not-modelled.md: every pair of parts that cannot be combined, with the keys and the reason."""

from docs.writers.tables import texts
from simulator.goes_with import REFUSED, Part


def markdown() -> str:
    """The pairs as a table, in the order in which they are looked for."""
    rows = ((_cell(row.first), _cell(row.second), row.why) for row in REFUSED)
    return "\n".join(texts(("part", "cannot be combined with", "why"), rows)) + "\n"


def _cell(part: Part) -> str:
    return f"{part.words} (`{part.key}`)"
