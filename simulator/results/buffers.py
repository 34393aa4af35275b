"""Rows and numbers as they come while a run goes on: packed as C has them, and cut into arrays in bulk."""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterable
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from simulator.columns import Column

Columns = dict[str, NDArray[Any]]

CUT_ROWS = 4096
"""Rows of a table that are packed before they are turned into an array: so few that packing them costs no memory."""


class Series:
    """One long column of numbers, filled piece by piece from lists; `code` is that of the module `array`."""

    def __init__(self, code: str) -> None:
        self._tail: array[Any] = array(code)
        self.extend = self._tail.fromlist
        self._column = Column()

    def __reduce__(self) -> tuple[type[Self], tuple[str], dict[str, object]]:
        self.cut()
        return type(self), (self._tail.typecode,), {"_column": self._column}

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

    def __init__(self, names: Iterable[str], cut_rows: int = CUT_ROWS) -> None:
        self._names = tuple(names)
        self._cut_rows = cut_rows
        self._rows = bytearray()
        self._packed: list[Column] = []  # of rows; at most two, the second of wider ones
        self._pack_as("i")

    def _pack_as(self, integer: str) -> None:
        codes = ["d" if name.endswith("_s") else integer for name in self._names]
        row = struct.Struct("=" + "".join(codes))
        self._pack = row.pack
        types = {"d": np.float64, "i": np.int32, "q": np.int64}
        self._type = np.dtype([(name, types[code]) for name, code in zip(self._names, codes, strict=True)])
        self._is_wide = integer == "q"
        self._cut_at = self._cut_rows * row.size
        self._packed.append(Column())

    def __len__(self) -> int:
        return sum(map(len, self._packed)) + len(self._rows) // self._type.itemsize

    def __reduce__(self) -> tuple[type[Self], tuple[tuple[str, ...], int], dict[str, object]]:
        self.cut()
        return type(self), (self._names, self._cut_rows), {"_packed": self._packed}

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
        """Append the rows of another table of the same columns, which was cut."""
        self.cut()
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
            if stop > 0 and start < len(packed):
                found.append(packed.open()[max(start, 0) : stop])
            start, stop = start - len(packed), stop - len(packed)
        return {name: _wide([rows[name] for rows in found], name) for name in self._names}

    def column(self, name: str) -> NDArray[Any]:
        """One column, in 64 bits; of the rows, a piece is in memory at a time."""
        self.cut()
        return _wide((piece[name] for packed in self._packed for piece in packed.pieces()), name)

    def columns(self) -> Columns:
        """The columns by name, in 64 bits."""
        return {name: self.column(name) for name in self._names}


def _wide(parts: Iterable[NDArray[Any]], name: str) -> NDArray[Any]:
    kind = np.float64 if name.endswith("_s") else np.int64
    copies = [part.astype(kind) for part in parts]
    return np.concatenate(copies) if copies else np.empty(0, kind)
