"""Rows and numbers as they come while a run goes on, and those of one replica: packed, and cut into arrays in bulk."""

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

from simulator.columns import Column
from simulator.timing.cost import StepShape

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
        """One column, in 64 bits; of the rows, a piece is in memory at a time."""
        self.cut()
        kind = _kind(name)
        copies = [np.empty(0, kind)]
        for packed in self._packed:
            for piece in packed.pieces():
                copies.append(piece[name].astype(kind))  # a list of pieces would keep all of them mapped
        return np.concatenate(copies)

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


def _kind(name: str) -> type[np.float64 | np.int64]:
    return np.float64 if name.endswith("_s") else np.int64


def _wide(parts: list[NDArray[Any]], name: str) -> NDArray[Any]:
    return np.concatenate([part.astype(_kind(name)) for part in parts]) if parts else np.empty(0, _kind(name))


# Collects what one replica does while it runs: rows of steps, steps, gaps, requeues, and uses of adapters.

# Steps and rows that are Python objects until they are turned into arrays, of all replicas together; and the fewest
# of one replica that this is done for at a time.
_CUT_STEPS, _FEWEST_STEPS = 1 << 16, 1024
_FEWEST_ROWS = 256

# What the buffers hold of a row of steps. It lasts until the next begins; most other columns follow from the shape of
# its first step.
_COUNTS = StepShape._fields.index("prefill_pairs")
ROW = ("first_step", "start_s", "waiting", "late", *StepShape._fields[:_COUNTS])
# What few rows need besides.
ODD = ("row", "idle_slots", "held", "swapped", "padded_tokens", "preempted", "swapped_out_blocks", "swapped_in_blocks",
       "draft_tokens")  # fmt: skip
_GAP = ("gap_s", "count", "end_s")
_REQUEUE = ("row", "from_s", "to_s", "swapped")
_ADAPTER = ("row", "at_s", "loaded", "shut_out_s")


class ReplicaRecorder:
    """What one of `replicas` does: apart from the others, so that nothing depends on how they interleave."""

    def __init__(self, replicas: int) -> None:
        cut_rows = max(CUT_ROWS // replicas, _FEWEST_ROWS)
        self.rows = Table(ROW, cut_rows)
        self.odd_rows = Table(ODD, cut_rows)
        self.late_gaps = Table(_GAP, cut_rows)
        self.requeues = Table(_REQUEUE, cut_rows)
        self.adapters = Table(_ADAPTER, cut_rows)
        self.step_end_s = Series("d")
        self.step_used_blocks = Series("i")
        self._cut_steps = self._cut_at = max(_CUT_STEPS // replicas, _FEWEST_STEPS)
        self.num_rows = 0
        self.num_steps = 0
        self.end_s = -1.0  # of the last step

    def __reduce__(self) -> tuple[type[ReplicaRecorder], tuple[int], tuple[Any, ...]]:
        # Compiled, a class is made by its constructor alone.
        tables = self.rows, self.odd_rows, self.late_gaps, self.requeues, self.adapters
        steps = self.step_end_s, self.step_used_blocks, self._cut_steps, self._cut_at
        state = (*tables, *steps, self.num_rows, self.num_steps, self.end_s)
        return ReplicaRecorder, (1,), state

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self.rows, self.odd_rows, self.late_gaps, self.requeues, self.adapters = state[:5]
        self.step_end_s, self.step_used_blocks, self._cut_steps, self._cut_at = state[5:9]
        self.num_rows, self.num_steps, self.end_s = state[9:]

    def row(self, start_s: float, waiting: int, late: int, shape: StepShape) -> None:
        """A row begins at `start_s` with a step of this shape.

        `late` of the decoding requests got their last token before `start_s`: their gaps are in `late_gaps`. The gap
        of the others is the row's first step.
        """
        self.num_rows += 1
        if self.num_steps >= self._cut_at:
            self._cut_at = self.num_steps + self._cut_steps
            self.step_end_s.cut()
            self.step_used_blocks.cut()
        self.rows.add((self.num_steps, start_s, waiting, late, *shape[:_COUNTS]))

    def odd(self, *columns: int) -> None:
        """Record the rare columns of the row that has just begun: those of `ODD` but the first.

        `idle_slots` are requests in the batch that compute nothing: paused, or admitted for later.
        """
        if any(columns):
            self.odd_rows.add((self.num_rows - 1, *columns))

    def steps(self, ends_s: list[float], used_blocks: list[int]) -> None:
        """Steps of the row that has begun."""
        self.step_end_s.extend(ends_s)
        self.step_used_blocks.extend(used_blocks)
        self.num_steps += len(ends_s)
        self.end_s = ends_s[-1]
