"""The lines of a trace file, and a trace format as one object: how a file is recognised and its rows are read."""

from __future__ import annotations

import codecs
import difflib
import gzip
import io
import math
import re
import zlib
from array import array
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice, repeat
from pathlib import Path
from typing import Any, Literal, NamedTuple, cast

import numpy as np

from scenarios.traces.rows import Row, tokens
from simulator.errors import InputError

# The lines of a trace file, plain or gzip, one at a time or many plain ones at once.

Line = tuple[int, str]  # its number, counted from 1, and its text without the line end

LONGEST_LINE_BYTES = 64 << 20  # a prompt of a million token ids takes about 8 MB
_BUFFER_BYTES = 1 << 20

_MARKS = re.compile(r'[^"\\]*("|\\.?)')  # inside a string: up to its end, or an escape
_BRACKETS = re.compile(r'[^"{}]*(["{}])')  # outside: up to a string or a brace

_GZIP = b"\x1f\x8b"
_OTHER_KINDS = (
    (b"PK\x03\x04", "a zip archive"),
    (b"\x28\xb5\x2f\xfd", "zstd-compressed"),
    (b"BZh", "bzip2-compressed"),
    (b"\xfd7zXZ\x00", "xz-compressed"),
    (b"PAR1", "a Parquet file"),
    (b"\x89HDF", "an HDF5 file"),
    (codecs.BOM_UTF16_LE, "UTF-16 text"),
    (codecs.BOM_UTF16_BE, "UTF-16 text"),
)


def numbered_lines(path: Path) -> Generator[Line, None, None]:
    """Every line that is not blank, as it is read; a UTF-8 byte order mark and CR LF are taken off.

    Bytes that are not UTF-8 come as lone surrogates (`surrogateescape`): the reader decides whether they matter.
    Raises InputError for a file that is missing, unreadable, damaged, or no text.
    """
    file = str(path)
    number = 0
    try:
        with _open(path) as stream:
            for number, raw in enumerate(iter(partial(stream.readline, LONGEST_LINE_BYTES), b""), 1):
                if len(raw) >= LONGEST_LINE_BYTES:
                    limit = f"{LONGEST_LINE_BYTES >> 20} MiB"
                    raise InputError(f"a line longer than {limit}", file=file, line=number, hint="not a trace?")
                if number == 1:
                    _refuse_other_kinds(raw, file)
                    raw = raw.removeprefix(codecs.BOM_UTF8)
                text = raw.decode("utf-8", "surrogateescape").rstrip("\r\n")
                if text and not text.isspace():
                    yield number, text
    except EOFError as error:
        raise InputError(
            f"the gzip data ends too early, after line {number}: the file is cut off", file=file, hint="fetch it again"
        ) from error
    except (gzip.BadGzipFile, zlib.error) as error:
        raise InputError(f"damaged gzip data after line {number}: {error}", file=file, hint="fetch it again") from error
    except OSError as error:
        raise InputError(f"cannot read: {error.strerror or error}", file=file) from error


def array_items(lines: Iterator[Line]) -> Iterator[Line]:
    """The text of each outermost object with the number of the line on which it begins.

    What stands between them (brackets, commas) is passed over; what is inside one is checked when it is parsed. An
    object that is cut off comes as it is. Only one object is held at a time.
    """
    depth, in_string, began = 0, False, 0
    pieces: list[str] = []
    for number, text in lines:
        start = place = 0
        if depth:
            pieces.append("\n")
        while match := (_MARKS if in_string else _BRACKETS).match(text, place):
            place = match.end()
            mark = match.group(1)
            if mark == '"':
                in_string = not in_string and depth > 0
            elif mark == "{":
                if not depth:
                    began, start = number, place - 1
                depth += 1
            elif mark == "}" and depth:
                depth -= 1
                if not depth:
                    pieces.append(text[start:place])
                    yield began, "".join(pieces)
                    pieces.clear()
        if depth:
            pieces.append(text[start:])
    if depth:
        yield began, "".join(pieces)


def _open(path: Path) -> io.BufferedReader:
    if path.is_dir():
        raise _is_folder(path)
    try:
        stream = cast(io.BufferedReader, path.open("rb", buffering=_BUFFER_BYTES))
    except FileNotFoundError as error:
        raise missing_file(path) from error
    except ValueError as error:
        raise InputError(f"not a path to a file: {str(path)!a}") from error
    if stream.peek(2)[:2] != _GZIP:
        return stream
    # GzipFile is a buffered reader by its interface, but its readline is slow Python: read it in large pieces.
    unpacked = cast(io.RawIOBase, _OwningGzip(stream))
    return io.BufferedReader(unpacked, _BUFFER_BYTES)


class _OwningGzip(gzip.GzipFile):
    """A GzipFile that closes the file below it."""

    def __init__(self, below: io.BufferedReader) -> None:
        super().__init__(fileobj=below, mode="rb")
        self._below = below

    def close(self) -> None:
        super().close()
        self._below.close()


def _refuse_other_kinds(first: bytes, file: str) -> None:
    for magic, kind in _OTHER_KINDS:
        if first.startswith(magic):
            raise InputError(
                f"this is {kind}, not a CSV or JSON Lines file", file=file, hint="plain text (UTF-8) and gzip are read"
            )


def _is_folder(path: Path) -> InputError:
    names = sorted(entry.name for entry in path.iterdir())
    traces = [name for name in names if name.removesuffix(".gz").endswith((".csv", ".jsonl"))]
    hint = f"it holds {', '.join(traces[:5])}" + (", ..." if len(traces) > 5 else "") if traces else None
    return InputError("this is a folder, not a trace file", file=str(path), hint=hint)


def missing_file(path: Path) -> InputError:
    """There is no file at `path`: name the nearest in its folder."""
    parent = path.parent
    if not parent.is_dir():
        return InputError("no such file", file=str(path), hint=f"and there is no folder {parent}")
    names = sorted(entry.name for entry in parent.iterdir() if entry.is_file())
    near = difflib.get_close_matches(path.name, names, n=1)
    hint = f"did you mean {parent / near[0]}?" if near else f"{parent} holds no file of a similar name"
    return InputError("no such file", file=str(path), hint=hint)


# Many plain rows of a CSV file at once, with the values that the format's own parser gives, to the last bit.
#
# A block is plain if every row has all fields and nothing in it is quoted, padded, zero or otherwise unusual. The
# rows of any other block are parsed one by one. So each error and each odd value has one owner.

ROWS = 4096  # of a block


class PlainRows(NamedTuple):
    """Rows in columns, as in `Columns`; `extra` holds the optional columns, None where a row has no value."""

    arrival: array[int] | array[float]
    inputs: array[int]
    outputs: array[int]
    extra: Mapping[str, Sequence[str | None]] = {}


ParsePlain = Callable[[Sequence[str]], PlainRows | None]
"""Takes the texts of rows; None where they are not plain."""

_FEW_DIGITS = 9  # a count of so many is below `MOST_TOKENS`
_STAMPS = re.compile(r"(?:(?:19[7-9]|20\d|21\d)\d-\d\d-\d\d[ T]\d\d:[0-5]\d:[0-5]\d(?:\.\d{1,9})?,)+", re.ASCII)


def blocks(rows: Iterator[Line]) -> Iterator[list[Line]]:
    """The rows in blocks. An error in reading is raised after the rows before it were given."""
    while True:
        block: list[Line] = []
        try:
            block.extend(islice(rows, ROWS))
        except InputError:
            yield block
            raise
        if not block:
            return
        yield block


def fields_of(texts: Sequence[str], width: int) -> list[list[str]] | None:
    """The columns of rows that have `width` fields each, ASCII and without quotes; None for others."""
    text = ",".join(texts)
    if not text.isascii() or '"' in text or set(map(str.count, texts, repeat(","))) != {width - 1}:
        return None
    fields = text.split(",")
    return [fields[place::width] for place in range(width)]


def counts(column: Sequence[str]) -> array[int] | None:
    """Numbers of at least 1, of a few digits; None where one is anything else."""
    if not "".join(column).isdecimal() or not 0 < len(min(column, key=len)) <= len(max(column, key=len)) <= _FEW_DIGITS:
        return None
    numbers = array("i", map(int, column))
    return numbers if min(numbers) else None


def seconds_of(column: Sequence[str], latest_s: float) -> array[float] | None:
    """Times from 0 to `latest_s`; None where one is anything else."""
    if "_" in "".join(column):
        return None
    try:
        times = array("d", map(float, column))
    except ValueError:
        return None
    # A sum is not finite if one of the times is not.
    return times if math.isfinite(sum(times)) and min(times) >= 0 and max(times) <= latest_s else None


def stamps_ns(column: Sequence[str], offset: str) -> array[int] | None:
    """Date-times in UTC, each followed by `offset`, as nanoseconds since 1970; None where one is anything else."""
    if offset:
        if not all(map(str.endswith, column, repeat(offset))):
            return None
        column = [text[: -len(offset)] for text in column]
    if _STAMPS.fullmatch(",".join(column) + ",") is None:
        return None
    try:
        return array("q", np.array(column, dtype="datetime64[ns]").tobytes())
    except ValueError:  # no day of the calendar, or no hour of a day
        return None


def words(column: Iterable[str]) -> list[str | None]:
    """Names; None where a field is blank."""
    return [field if field.strip() else None for field in column]


TimeUnit = Literal["s", "ms", "us", "ns"]

UNIT_NS: dict[str, int] = {"s": 1_000_000_000, "ms": 1_000_000, "us": 1_000, "ns": 1}

FileKind = Literal["csv", "jsonl", "text"]
"""The look of a file: CSV with a header, an object a line, or neither."""

Clock = Literal["utc", "ticks", "run"]
"""The meaning of times: nanoseconds since 1970 UTC; nanoseconds from an origin of the file's own; or seconds since the
start of the run that the trace describes, whose 0 is kept. A row's arrival is an int on the first two, a float on the
third."""


@dataclass(frozen=True, slots=True)
class Signature:
    """Columns of a header, or keys of an object, that mark a format; and those that it must not have."""

    has: tuple[str, ...]
    lacks: tuple[str, ...] = ()

    def fits(self, names: Sequence[str]) -> bool:
        """Return whether the names mark the format."""
        have = frozenset(names)
        return have.issuperset(self.has) and have.isdisjoint(self.lacks)

    def folded(self) -> Signature:
        """Return whether the names mark the format, without regard to case."""
        return Signature(tuple(map(str.casefold, self.has)), tuple(map(str.casefold, self.lacks)))


@dataclass(frozen=True, slots=True)
class Source:
    """A public trace file. `sha256` is that of the plain file (before any gzip), where it is known."""

    file: str
    what: str
    address: str
    licence: str
    rows: str | None = None
    sha256: str | None = None
    cite: str | None = None


@dataclass(frozen=True, slots=True)
class Head:
    """The beginning of a file whose format is known.

    `names` are the columns of the header, or the keys of the first object, in file order; `positions` says where each
    of the format's `columns` lies among them. `sample` holds the first lines, a header included, and `whole` says that
    no more follow. `rows` gives every line after the header. `time_unit` is the unit that the reader was given, None
    where it was not; `asked` says that the format was given rather than found. `answer` reads the number of tokens of
    an answer, and knows what the reader was told about answers without any (`TraceOptions.zero_output`). `seed` is for
    what is drawn. Of a folder only `file` says anything.
    """

    file: str
    kind: FileKind
    names: tuple[str, ...]
    positions: Mapping[str, int]
    sample: Sequence[Line]
    whole: bool
    rows: Iterator[Line]
    time_unit: TimeUnit | None
    asked: bool
    answer: Callable[[object, str], int] = tokens
    seed: int = 0


@dataclass(frozen=True, slots=True)
class OpenTrace:
    """A file whose rows can be read, one after the other, without the whole of it in memory.

    `rows` gives each row with the number of its line (from 1), and `parse` turns it into values or raises RowError.
    A row is mostly the text of a line, as in `Head.rows`; a format whose rows are nested in a line, or spread over
    lines, gives them in any shape that its `parse` takes. `parse_plain`, where there is one, takes many rows at once
    and gives what `parse` does. `format` names the sibling that the file turned out to be
    of; `note` is known at once, `remarks` once the rows have been read. `timed` says that the rows have arrival times;
    without them every arrival is 0.
    """

    rows: Iterator[tuple[int, Any]]
    parse: Callable[[Any], Row]
    clock: Clock
    time_unit: TimeUnit = "s"
    format: str | None = None
    note: str | None = None
    remarks: Callable[[], list[str]] = list
    timed: bool = True
    parse_plain: ParsePlain | None = None


@dataclass(frozen=True, slots=True)
class TraceFormat:
    """One format.

    A file is of the format if its header fits one of `csv`, or the keys of its first object one of `json` (one of
    `json_if_asked` where the format was given); or, for what has neither, if its text matches `begins`; or, for a
    folder, if the name of a file in it matches `in_folder`. Of a CSV file `columns` are read, optional
    ones included; others are named in a note unless `names_unread` is False. `times` says in words what its times
    are, `also` what is read besides times and lengths, `units` which `time_unit` may be given for it. `sources` are
    public traces of the format.
    """

    name: str
    title: str
    open: Callable[[Head], OpenTrace]
    csv: tuple[Signature, ...] = ()
    json: tuple[Signature, ...] = ()
    json_if_asked: tuple[Signature, ...] = ()
    begins: re.Pattern[str] | None = None
    in_folder: re.Pattern[str] | None = None
    columns: tuple[str, ...] = ()
    names_unread: bool = True
    times: str = ""
    also: str = ""
    units: tuple[TimeUnit, ...] = ()
    sources: tuple[Source, ...] = ()
