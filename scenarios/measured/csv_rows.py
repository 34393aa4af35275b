"""CSV with a header, row by row, by the names of its columns."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from scenarios.measured.measured_run import bad_row
from scenarios.traces.lines import Line
from scenarios.traces.rows import RowError, split_csv
from simulator.errors import InputError

CsvRow = Mapping[str, str]


def rows_of(lines: list[Line], wanted: Sequence[str], file: str) -> Iterator[tuple[int, CsvRow]]:
    """Each row with the number of its line. Raises InputError for missing columns and rows of another width."""
    number_, first = lines[0]
    header = [name.strip() for name in _split(first, file, number_)]
    if missing := [name for name in wanted if name not in header]:
        seen = ", ".join(header[:15])
        raise InputError(f"no column {', '.join(missing)}", file=file, line=number_, hint=f"columns seen: {seen}")
    for line, text in lines[1:]:
        fields = _split(text, file, line)
        if len(fields) != len(header):
            raise bad_row(file, line, f"{len(fields)} fields, but the header has {len(header)}")
        yield line, dict(zip(header, fields, strict=True))


def _split(text: str, file: str, line: int) -> list[str]:
    try:
        return split_csv(text)
    except RowError as error:
        raise bad_row(file, line, error.detail) from None
