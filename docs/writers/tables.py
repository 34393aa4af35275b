"""Tables of the pages, as Markdown; and as CSV, the data files of the site, which lie in `docs/data`."""

import csv
import io
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from textwrap import wrap

Rows = Iterable[Sequence[object]]
Files = Mapping[str, str]
"""Text of data files by path, from the folder of pages."""


def table(head: Sequence[str], rows: Rows, numbers: Container[int] | None = None) -> Iterator[str]:
    """Return the lines of a table. Columns of `numbers` are set to the right: None stands for all but the first."""
    right = range(1, len(head)) if numbers is None else numbers
    yield _row(head)
    yield _row(["---:" if place in right else "---" for place in range(len(head))])
    yield from map(_row, rows)


def texts(head: Sequence[str], rows: Rows) -> Iterator[str]:
    """Return the lines of a table without numbers."""
    return table(head, rows, ())


def csv_text(head: Sequence[str], rows: Rows) -> str:
    """A CSV file with its head."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(head)
    writer.writerows(rows)
    return text.getvalue()


def write_files(folder: Path, files: Files) -> None:
    """Write the files into the folder of pages."""
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8", newline="\n")


def about(path: str, columns: str) -> str:
    """The line of a page that links a file and names its columns."""
    return "\n".join(wrap(f"[{path.removeprefix('data/')}]({path}) has every row: {columns}.", 120))


def _row(cells: Iterable[object]) -> str:
    return f"| {' | '.join(map(str, cells))} |"
