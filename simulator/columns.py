"""Columns of any length: short ones in memory, long ones in files, zeros nowhere.

A run of ten million requests has some hundred million steps. Its columns are written to files as they fill and are
mapped where they are read, a column at a time, so that memory does not grow with the run. The files have no names: they
lie in the folder for temporary files (TMPDIR) and are gone with the process.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Iterator
from typing import IO, TYPE_CHECKING, Any, Self, get_args, get_type_hints

import numpy as np
from annotated_types import DocInfo, Unit
from numpy.typing import NDArray

from simulator.errors import InputError

Array = NDArray[Any]

KEPT_BYTES = 1 << 24  # bytes up to which a column stays in memory: those of two million numbers
_UNITS = {"_s": "s", "_ms": "ms", "tokens": "tokens", "blocks": "blocks", "bytes": "bytes"}
"""The unit of a column by the end of its name."""
PIECE = 1 << 17  # numbers that are looked at together: with all columns of a table still few megabytes


class Column:
    """Arrays of one type, one after the other, which `open` gives as one."""

    def __init__(self) -> None:
        self._arrays: list[Array] = []
        self._file: IO[bytes] | None = None
        self._type: np.dtype[Any] | None = None
        self._zeros = 0  # entries that are all there is, and none of which is stored
        self._len = 0

    def __len__(self) -> int:
        return self._len

    def __reduce__(self) -> tuple[Any, ...]:
        return joined, ([self.open()],)

    def __del__(self) -> None:
        if self._file is not None:
            self._file.close()  # what is mapped of it stays

    def add(self, values: Array) -> None:
        """Append these, which nobody changes afterwards."""
        if self._type is None:
            self._type = values.dtype
        if not len(values):
            return
        if self._zeros == self._len:
            if not _has_bits(values):
                self._zeros += len(values)
                self._len += len(values)
                return
            self._store_zeros()
        self._len += len(values)
        self._put(values)

    def _store_zeros(self) -> None:
        left, self._zeros = self._zeros, 0
        while left > 0:
            self._put(np.zeros(min(left, PIECE), self._type))
            left -= PIECE

    def _put(self, values: Array) -> None:
        self._arrays.append(values)
        if self._file is None:
            if self._len * values.itemsize <= KEPT_BYTES:
                return
            # Without a buffer: what was written can be mapped at once.
            self._file = tempfile.TemporaryFile(buffering=0, prefix="batchlab-")  # noqa: SIM115  it is open as long as the column
        for array in self._arrays:
            self._write(array)
        self._arrays = []

    def _write(self, values: Array) -> None:
        assert self._file is not None
        left = np.ascontiguousarray(values).view(np.uint8).data
        try:
            while left:
                left = left[self._file.write(left) :]
        except OSError as error:
            what = f"a long run keeps its columns in files, and {tempfile.gettempdir()} does not take them: {error}"
            raise InputError(what, hint="TMPDIR=/a/larger/folder") from error

    @property
    def in_file(self) -> bool:
        """True if the column is in a file. It is then mapped again each time that it is opened."""
        return self._file is not None

    def open(self) -> Array:
        """All of it, not to be written to."""
        if self._type is None:
            return np.empty(0)
        if self._zeros == self._len:
            return np.broadcast_to(np.zeros((), self._type), self._len)  # one zero, seen many times
        if self._file is None:
            if len(self._arrays) > 1:
                self._arrays = [np.concatenate(self._arrays)]
            return self._arrays[0]
        return np.asarray(np.memmap(self._file, self._type, mode="r", shape=(self._len,)))

    def pieces(self) -> Iterator[Array]:
        """All of it, `PIECE` entries at a time: of a long column no more is in memory."""
        return pieces_of(self.open)


def stretches(count: int) -> Iterator[slice]:
    """So many entries as slices of `PIECE`."""
    return (slice(start, min(start + PIECE, count)) for start in range(0, count, PIECE))


def pieces_of(column: Callable[[], Array]) -> Iterator[Array]:
    """A column, `PIECE` entries at a time; asked for anew for each, so that of one in a file no more is in memory."""
    return (column()[stretch] for stretch in stretches(len(column())))


def joined(arrays: Iterable[Array]) -> Column:
    """These arrays as a column."""
    column = Column()
    for array in arrays:
        column.add(array)
    return column


def _has_bits(values: Array) -> bool:
    """True if any value has a bit set. -0.0 has one, unlike 0 and 0.0."""
    return values.dtype.kind == "V" or bool(values.view(f"u{values.itemsize}").any())


class StoredColumns:
    """A dataclass of columns, of which those in files are mapped anew each time that they are asked for."""

    __slots__ = ("_in_files",)
    _in_files: dict[str, Column]

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            try:
                return object.__getattribute__(self, "_in_files")[name].open()
            except (AttributeError, KeyError):
                raise AttributeError(f"{type(self).__name__} has no {name}") from None

    @classmethod
    def keep(cls, columns: dict[str, Column], **others: object) -> Self:
        """One of these columns, and of other fields as they are."""
        opened = {name: None if column.in_file else column.open() for name, column in columns.items()}
        made = cls(**opened, **others)
        in_files = {name: column for name, column in columns.items() if column.in_file}
        for name in in_files:
            object.__delattr__(made, name)  # so that it is asked for in `__getattr__`
        object.__setattr__(made, "_in_files", in_files)
        return made


def described(columns: type) -> dict[str, tuple[str, str]]:
    """Unit and meaning of each described column of a class, by its name.

    A column is described where it is declared: `name: Annotated[Ints, doc("its meaning"), Unit("requests")]`. The unit
    is left out where the name ends with it.
    """
    found = {}
    for name, annotation in get_type_hints(columns, include_extras=True).items():
        notes = get_args(annotation)[1:]
        meaning = next((note.documentation for note in notes if isinstance(note, DocInfo)), None)
        if meaning is not None:
            by_name = next((unit for end, unit in _UNITS.items() if name.endswith(end)), "")
            found[name] = next((note.unit for note in notes if isinstance(note, Unit)), by_name), meaning
    return found
