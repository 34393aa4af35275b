"""A trace format as one object: how a file of it is recognised, what its times count, how its rows are read.

Each module of `scenarios/traces/formats/` holds one, as its constant `FORMAT`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from scenarios.traces.lines import Line, ParsePlain
from scenarios.traces.rows import Row, tokens

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
