"""Fast CSV for the tables of a run: columns to gzipped bytes and back, without a bit lost.

A column is a numpy array (int64 or float64) or a list of strings. Floats are written as `repr` writes them, which reads
back as the same float; NaN is an empty field. The same columns in the same order make the same bytes.
"""

import csv
import gzip
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, groupby, islice, repeat
from pathlib import Path
from typing import Any

import numpy as np
from pydantic_core import to_json

from simulator.results.records import Floats, Ints

Column = Floats | Ints | list[str]
CHUNK_ROWS = 4096  # formatted at once: as text, a row takes two kilobytes of memory
PART_ROWS = 16 * CHUNK_ROWS  # in memory at once, of a table that lies in files
TEXTS = ("request_id", "class", "status", "reject_reason", "session_id", "task_id", "retry_of")
_MUST_QUOTE = ',"\r\n'
_PLAIN = (1e-4, 1e16)  # from here to there `repr` writes a float without an exponent


def parts(count: int) -> Iterator[slice]:
    """Cut `count` rows into slices, of which one at a time is turned into text."""
    return (slice(start, start + PART_ROWS) for start in range(0, max(count, 1), PART_ROWS))


def write_csv(path: Path, table: Mapping[str, Column]) -> None:
    """Write the table as gzipped CSV with a header; equal tables give equal bytes."""
    write_parts(path, [table])


def write_parts(path: Path, table: Iterable[Mapping[str, Column]]) -> None:
    """Write a table whose rows come in parts, one or more, as `write_csv` writes it whole."""
    with open_deterministic(path) as out:
        for number, part in enumerate(table):
            if number == 0:
                out.write((",".join(part) + "\n").encode())
            for text in _chunks(part):
                out.write(text.encode())


def open_deterministic(path: Path) -> gzip.GzipFile:
    """Open a gzip file for writing whose header has neither a time nor a file name."""
    # Level 1: tables of random digits gain 4 % from level 6, for five times the seconds.
    return _Gzip(path)


class _Gzip(gzip.GzipFile):
    """A GzipFile that closes the file below it too."""

    def __init__(self, path: Path) -> None:
        self._below = path.open("wb")
        super().__init__(filename="", mode="wb", compresslevel=1, fileobj=self._below, mtime=0)

    def close(self) -> None:
        try:
            super().close()
        finally:
            self._below.close()


def read_csv(path: Path) -> dict[str, Column]:
    """Read a table of `write_csv`. Raises ValueError where rows or numbers are not what it writes."""
    with gzip.open(path, "rt", encoding="utf-8", newline="") as file:
        reader = csv.reader(file)
        header = next(reader, [])
        parts: list[list[Any]] = [[_parse(name, ())] for name in header]
        while rows := list(islice(reader, CHUNK_ROWS)):
            for name, part, texts in zip(header, parts, zip(*rows, strict=True), strict=True):
                part.append(_parse(name, texts))
    return {name: _joined(part) for name, part in zip(header, parts, strict=True)}


def _parse(name: str, texts: Sequence[str]) -> Column:
    if name in TEXTS:
        return list(map(sys.intern, texts))
    if name.endswith(("_s", "_ms")):
        if "" in texts:
            return np.array([float(text or "nan") for text in texts], dtype=np.float64)
        return np.array(list(map(float, texts)), dtype=np.float64)
    return np.array(list(map(int, texts)), dtype=np.int64)


def _joined(parts: list[Any]) -> Column:
    return list(chain.from_iterable(parts)) if isinstance(parts[0], list) else np.concatenate(parts)


def _chunks(table: Mapping[str, Column]) -> Iterator[str]:
    columns = list(table.values())
    count = len(columns[0])
    for start in range(0, count, CHUNK_ROWS):
        cells = [_cells(column[start : start + CHUNK_ROWS]) for column in columns]
        rows = zip(*_few_cells(cells, min(CHUNK_ROWS, count - start)), strict=True)
        yield "\n".join(map(",".join, rows)) + "\n"


def _few_cells(columns: Iterable[list[str] | str], rows: int) -> Iterator[Iterable[str]]:
    """Yield the cells of so many rows, column by column. Neighbouring columns of one value each are joined to one."""
    for is_same, group in groupby(columns, lambda cells: isinstance(cells, str)):
        if is_same:
            yield repeat(",".join(map(str, group)), rows)
        else:
            yield from group


def _cells(column: Column) -> list[str] | str:
    """The CSV text of each value; one text where it is the same in all rows."""
    if isinstance(column, list):
        if column.count(column[0]) == len(column):
            return _quoted(column[0])
        return list(map(_quoted, column)) if _must_quote("".join(column)) else column
    first = column[0].item()
    bits = column.view(f"i{column.itemsize}")  # so that NaN equals NaN and -0.0 is not 0.0
    if (bits == bits[0]).all():  # most counts are zero throughout
        return "" if first != first else repr(first)
    texts = texts_of(column.tolist())
    if column.dtype.kind == "f":
        size = np.abs(column)
        plain = (size >= _PLAIN[0]) & (size < _PLAIN[1]) | (size == 0.0)
        for index in np.flatnonzero(~plain).tolist():
            value = column.item(index)
            texts[index] = "" if value != value else repr(value)
    return texts


def texts_of(numbers: Sequence[float]) -> list[str]:
    """Return `repr` of each number, but for floats with an exponent.

    Both write the shortest digits that read back as the same float. This takes a tenth of the time.
    """
    text = to_json(numbers)[1:-1].decode()
    return text.split(",") if text else []


def _must_quote(text: str) -> bool:
    return any(mark in text for mark in _MUST_QUOTE)


def _quoted(text: str) -> str:
    return '"' + text.replace('"', '""') + '"' if _must_quote(text) else text
