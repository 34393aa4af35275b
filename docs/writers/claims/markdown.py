"""Parts of a written page: tables, texts with figures in them, what was expected and what came out."""

import re
from collections.abc import Iterator, Sequence

from docs.writers import tables
from docs.writers.claims.claim import Expectation, Figures, Table


def filled(text: str, figures: Figures) -> str:
    """The text with its figures in it; per cent as the rest of the page has it."""
    return re.sub(r"(?<=\d)%", " %", text.format_map(figures))


def table_lines(table: Table) -> Iterator[str]:
    """A table as Markdown, its caption above it."""
    if table.caption:
        yield f"{table.caption}:"
        yield ""
    yield from tables.table(table.head, table.rows)


def expected_lines(expected: Sequence[Expectation], figures: Figures) -> Iterator[str]:
    """The expected figures beside the measured ones, as Markdown."""
    rows = [(f"`{one.figure}`", one.written, f"{figures[one.figure]:.4g}", one.why) for one in expected]
    yield from tables.table(("expected figure", "expected", "measured", "why"), rows, (1, 2))
