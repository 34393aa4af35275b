"""Rows and numbers as they come while a run goes on: packed as C has them, and cut into arrays in bulk."""

from __future__ import annotations

import struct
import sys
from array import array
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from itertools import groupby
from operator import attrgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulator.results.columns import Column

Columns = dict[str, NDArray[Any]]

CUT_ROWS = 4096
"""Rows of a table that are packed before they are turned into an array: so few that packing them costs no memory."""


class Series:
    """One long column of numbers, filled piece by piece from lists; `code` is that of the module `array`."""

    def __init__(self, code: str, column: Column | None = None) -> None:
        self._tail: array[Any] = array(code)
        self.extend: Callable[[list[Any]], None] = self._tail.fromlist
        self._column = Column() if column is None else column

    def __reduce__(self) -> tuple[type[Series], tuple[str, Column]]:
        return Series, (self._tail.typecode, self.column())

    def cut(self) -> None:
        """Set aside what was added: an array that grows without end is copied as it grows."""
        self._column.add(np.array(self._tail))
        del self._tail[:]

    def column(self) -> Column:
        """All of it."""
        self.cut()
        return self._column


class Table:
    """Rows of numbers in, columns out; the columns named `*_s` are floats, the others integers.

    Integers are packed in 32 bits, from the first on that needs more in 64.
    """

    def __init__(self, names: Iterable[str], cut_rows: int = CUT_ROWS, packed: Iterable[Column] = ()) -> None:
        self._names = tuple(names)
        self._cut_rows = cut_rows
        self._rows = bytearray()
        self._packed = list(packed)  # rows that were cut; the last column takes those to come
        self._pack: Callable[..., bytes]
        self._type: np.dtype[Any]
        self._pack_as("i")

    @staticmethod
    def joined(tables: Sequence[Table]) -> Table:
        """The rows of tables of the same columns, one after the other."""
        for each in tables:
            each.cut()
        return Table(tables[0]._names, packed=[packed for each in tables for packed in each._packed])

    def _pack_as(self, integer: str) -> None:
        row, self._type = _layout(self._names, integer)
        self._pack = row.pack
        self._is_wide = integer == "q"
        self._cut_at = self._cut_rows * row.size
        self._packed.append(Column())

    def __len__(self) -> int:
        return sum(map(len, self._packed)) + len(self._rows) // self._type.itemsize

    def __reduce__(self) -> tuple[type[Table], tuple[tuple[str, ...], int, list[Column]]]:
        self.cut()
        return Table, (self._names, self._cut_rows, self._packed)

    def add(self, row: tuple[float, ...]) -> None:
        """Append a row, its values in the order of the columns."""
        rows = self._rows
        try:
            rows += self._pack(*row)
        except struct.error:
            if self._is_wide:
                raise
            self.cut()
            self._pack_as("q")
            rows = self._rows
            rows += self._pack(*row)
        if len(rows) >= self._cut_at:
            self.cut()

    def extend(self, other: Table) -> None:
        """Append the rows of another table of the same columns."""
        self.cut()
        other.cut()
        self._packed += other._packed
        self._pack_as("i")

    def cut(self) -> None:
        """Turn what was added into an array."""
        if self._rows:
            self._packed[-1].add(np.frombuffer(self._rows, self._type))
            self._rows = bytearray()

    def part(self, start: int, stop: int) -> Columns:
        """The columns by name, of the rows from `start` to before `stop`, in 64 bits."""
        self.cut()
        found = []
        for packed in self._packed:
            if len(packed) and stop > 0 and start < len(packed):
                found.append(packed.open()[max(start, 0) : stop])
            start, stop = start - len(packed), stop - len(packed)
        found = _merged(found)
        return {name: _wide([rows[name] for rows in found], name) for name in self._names}

    def column(self, name: str) -> NDArray[Any]:
        """One column, in 64 bits."""
        self.cut()
        return _wide([packed.open()[name] for packed in self._packed if len(packed)], name)

    def columns(self) -> Columns:
        """The columns by name, in 64 bits."""
        return self.part(0, sys.maxsize)


@cache
def _layout(names: tuple[str, ...], integer: str) -> tuple[struct.Struct, np.dtype[Any]]:
    """How rows of these columns are packed, and what they are as an array."""
    codes = ["d" if name.endswith("_s") else integer for name in names]
    types = {"d": np.float64, "i": np.int32, "q": np.int64}
    rows = np.dtype([(name, types[code]) for name, code in zip(names, codes, strict=True)])
    return struct.Struct("=" + "".join(codes)), rows


def _merged(parts: list[NDArray[Any]]) -> list[NDArray[Any]]:
    """The parts, neighbours of one type as one: of many short ones a column is then taken at once."""
    runs = [list(alike) for _, alike in groupby(parts, key=attrgetter("dtype"))]
    return [run[0] if len(run) == 1 else np.concatenate(run) for run in runs]


def _wide(parts: list[NDArray[Any]], name: str) -> NDArray[Any]:
    kind = np.float64 if name.endswith("_s") else np.int64
    return np.concatenate([part.astype(kind) for part in parts]) if parts else np.empty(0, kind)
