"""Tables of the pages, as Markdown."""

from collections.abc import Container, Iterable, Iterator, Sequence

Rows = Iterable[Sequence[object]]


def table(head: Sequence[str], rows: Rows, numbers: Container[int] | None = None) -> Iterator[str]:
    """Return the lines of a table. Columns of `numbers` are set to the right: None stands for all but the first."""
    right = range(1, len(head)) if numbers is None else numbers
    yield _row(head)
    yield _row(["---:" if place in right else "---" for place in range(len(head))])
    yield from map(_row, rows)


def texts(head: Sequence[str], rows: Rows) -> Iterator[str]:
    """Return the lines of a table without numbers."""
    return table(head, rows, ())


def _row(cells: Iterable[object]) -> str:
    return f"| {' | '.join(map(str, cells))} |"
