"""A format of server logs: how a log of it is recognised, and how it is read.

Each module of `scenarios/measured/formats/` holds one, as its constant `FORMAT`.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from scenarios.measured.measured_run import MeasuredRun, Row
from scenarios.traces.lines import Line
from scenarios.traces.rows import RowError, json_object, split_csv
from simulator.errors import InputError

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class LogFile:
    """A log on disk: its name, and its lines that are not blank."""

    name: str
    lines: list[Line]

    def document(self) -> Any:
        """Return the JSON document that the whole file holds. Raises InputError with the line where it breaks."""
        texts = dict(self.lines)
        text = "\n".join(texts.get(line, "") for line in range(1, self.lines[-1][0] + 1))
        try:
            return json.loads(text)
        except json.JSONDecodeError as error:
            what = f"this is no complete JSON document: {error.msg}"
            raise InputError(what, file=self.name, line=error.lineno, column=error.colno) from None
        except RecursionError:
            raise InputError("the JSON document is nested too deeply", file=self.name) from None

    def objects(self) -> Iterator[Row]:
        """Yield the JSON object of each line."""
        for line, text in self.lines:
            yield Row(self._parsed(json_object, line, text), self.name, line)

    def csv_rows(self, wanted: Sequence[str]) -> Iterator[Row]:
        """Yield each row of a CSV below its header. Raises InputError for missing columns and rows of another width."""
        line, text = self.lines[0]
        header = [name.strip() for name in self._parsed(split_csv, line, text)]
        if missing := [name for name in wanted if name not in header]:
            seen = f"columns seen: {', '.join(header[:15])}"
            raise InputError(f"no column {', '.join(missing)}", file=self.name, line=line, hint=seen)
        for line, text in self.lines[1:]:
            cells = self._parsed(split_csv, line, text)
            if len(cells) != len(header):
                what = f"{len(cells)} fields, but the header has {len(header)}"
                raise InputError(what, file=self.name, line=line)
            yield Row(dict(zip(header, cells, strict=True)), self.name, line)

    def chosen(self, results: Sequence[Any], which: int | None, noun: str) -> int:
        """Return the place of the result that was asked for (counted from 1), or of the only one."""
        count = len(results)
        if which is None and count > 1:
            raise InputError(f"the file holds {count} {noun}s", file=self.name, hint="choose one: --benchmark 1, ...")
        if which is not None and not 1 <= which <= count:
            raise InputError(f"the file holds no {noun} {which}", file=self.name, hint=f"allowed: 1 to {count}")
        return (which or 1) - 1

    def _parsed(self, parse: Callable[[str], T], line: int, text: str) -> T:
        try:
            return parse(text)
        except RowError as error:
            raise InputError(error.detail, file=self.name, line=line) from None


@dataclass(frozen=True, slots=True)
class Summary:
    """A file of the same tool without single requests: a key that marks it, what it is, what to give instead."""

    key: str
    what: str
    hint: str


@dataclass(frozen=True, slots=True)
class LogFormat:
    """One format. `read` takes the file and the number of a run in it (None: not chosen), and raises InputError.

    A log is of the format if its first object (or the whole document) has all of `keys`, or its header all of
    `columns`; the format that demands most wins, and one that demands nothing takes any other CSV. `several` says that
    a file may hold more than one run.
    """

    name: str
    read: Callable[[LogFile, int | None], MeasuredRun]
    keys: frozenset[str] | None = None
    columns: frozenset[str] | None = None
    several: bool = False
    summary: Summary | None = None
