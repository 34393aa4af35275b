"""Columns that grow row by row: numbers are packed as C has them, and cut into arrays in bulk."""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from struct import Struct
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

Columns = dict[str, NDArray[Any]]

CUT_ROWS = 4096
"""Rows of a table that are packed before they are turned into columns: so few that packing them twice costs nothing."""


class Series:
    """One long column of numbers, filled piece by piece from lists; `code` is that of the module `array`."""

    def __init__(self, code: str) -> None:
        self._tail: array[Any] = array(code)
        self._chunks: list[NDArray[Any]] = []
        self.extend = self._tail.fromlist

    def cut(self) -> None:
        """Set aside what was added: an array that grows without end is copied as it grows."""
        self._chunks.append(np.array(self._tail))
        del self._tail[:]

    def column(self) -> NDArray[Any]:
        """All of it; the series is empty afterwards."""
        self.cut()
        whole = np.concatenate(self._chunks)
        self._chunks = []
        return whole


class Table:
    """Rows of numbers in, columns out; the columns named `*_s` are floats, the others integers."""

    def __init__(self, names: Iterable[str], cut_rows: int = CUT_ROWS) -> None:
        self._names = tuple(names)
        self._cut_rows = cut_rows
        codes = ["d" if name.endswith("_s") else "q" for name in self._names]
        row = Struct("=" + "".join(codes))
        self._pack = row.pack
        types = {"d": np.float64, "q": np.int64}
        self._type = np.dtype([(name, types[code]) for name, code in zip(self._names, codes, strict=True)])
        self._cut_at = cut_rows * row.size
        self._rows = bytearray()
        self._chunks: list[list[NDArray[Any]]] = []

    def __reduce__(self) -> tuple[type[Self], tuple[tuple[str, ...], int], dict[str, object]]:
        self.cut()
        return type(self), (self._names, self._cut_rows), {"_chunks": self._chunks}

    def add(self, row: tuple[float, ...]) -> None:
        """Append a row, its values in the order of the columns."""
        rows = self._rows
        rows += self._pack(*row)
        if len(rows) >= self._cut_at:
            self.cut()

    def extend(self, other: Table) -> None:
        """Append the rows of another table of the same columns, which was cut."""
        self._chunks += other._chunks

    def cut(self) -> None:
        """Turn what was added into arrays."""
        packed = np.frombuffer(self._rows, self._type)
        self._chunks.append([packed[name].copy() for name in self._names])
        self._rows = bytearray()

    def columns(self) -> Columns:
        """The columns by name; the table is empty afterwards."""
        self.cut()
        whole = {}
        for i, name in enumerate(self._names):
            whole[name] = np.concatenate([chunk[i] for chunk in self._chunks])
            for chunk in self._chunks:
                chunk[i] = np.empty(0)
        self._chunks = []
        return whole
