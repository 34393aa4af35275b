"""The tables of a run: their columns, each with unit and meaning, as fast CSV, and the way back to records."""

from __future__ import annotations

import csv
import gzip
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import chain, groupby, islice, repeat
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np
from pydantic_core import to_json

from simulator.columns import described
from simulator.metrics.latency import RequestLatencies, request_latencies
from simulator.metrics.usage import PartColumns, by_replica
from simulator.results.records import CallColumns, Floats, Ints, Records, RequestColumns, RowColumns, Status

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


# Fast CSV for the tables of a run: columns to gzipped bytes and back, without a bit lost.
#
# A column is a numpy array (int64 or float64) or a list of strings. Floats are written as `repr` writes them, which
# reads back as the same float; NaN is an empty field. The same columns in the same order make the same bytes.

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


T = TypeVar("T", bound="DataclassInstance")

ALL = slice(None)
Columns = Mapping[str, tuple[str, str]]
"""Unit and meaning of each column of a table, in the order of the columns."""
STATUS_NAMES = tuple(status.name.lower() for status in Status)


@dataclass(frozen=True, slots=True)
class _Part:
    """Some of the requests of a run: their rows, their records and their latencies."""

    rows: range
    part: slice
    run: Records
    requests: RequestColumns
    latencies: RequestLatencies


class _Told(NamedTuple):
    """A column of the requests: its unit and meaning, and its values; None where a run has no such column."""

    unit: str
    meaning: str
    values: Callable[[_Part], Column | None]


def _recorded(*names: str) -> dict[str, _Told]:
    """The columns of these names as they are recorded."""
    told = described(RequestColumns)
    return {name: _Told(*told[name], attrgetter(f"requests.{name}")) for name in names}


def _ids(part: _Part) -> list[str]:
    ids = part.run.request_ids
    return texts_of(list(part.rows)) if ids is None else list(ids[part.part])


def _reasons(part: _Part) -> list[str]:
    reasons = part.run.reject_reasons
    return [reasons.get(row, "") for row in part.rows] if reasons else [""] * len(part.rows)


def _names(name: str) -> Callable[[_Part], list[str] | None]:
    """A column of `Records` that few runs have: a name of each request, or none."""

    def values(part: _Part) -> list[str] | None:
        ids = getattr(part.run, name)
        return None if ids is None else [each or "" for each in ids[part.part]]

    return values


def _counts(name: str) -> Callable[[_Part], Ints | None]:
    """A column of `Records` that few runs have: a number of each request."""
    return lambda part: None if (values := getattr(part.run, name)) is None else values[part.part]


def _call(name: str) -> Callable[[_Part], Column | None]:
    """A column of the attempts; none without clients that answer back."""
    return lambda part: None if (calls := part.run.calls) is None else getattr(calls, name)[part.part]


def _retry_of(part: _Part) -> list[str] | None:
    if part.run.calls is None:
        return None
    each = zip(part.rows, part.run.calls.first_row[part.part].tolist(), strict=True)
    return [part.run.request_id(first) if first != row else "" for row, first in each]


_CALLS = described(CallColumns)
_REQUESTS: Mapping[str, _Told] = {
    "request_id": _Told("", "its name in the trace, else its row", _ids),
    "class": _Told("", "its class", lambda part: _named(part.requests.class_index, part.run.class_names)),
    "status": _Told(
        "",
        "`finished`, `rejected`, `unfinished` (at the end of the run) or `aborted` (by its client)",
        lambda part: _named(part.requests.status, STATUS_NAMES),
    ),
    **_recorded("arrival_s", "scheduled_s", "first_token_s", "last_token_s", "input_tokens", "output_tokens"),
    "ttft_ms": _Told("ms", "first token - arrival", attrgetter("latencies.ttft_ms")),
    "tpot_ms": _Told(
        "ms", "(last token - first token) / (output tokens - 1); empty for one token", attrgetter("latencies.tpot_ms")
    ),
    "e2el_ms": _Told("ms", "last token - arrival", attrgetter("latencies.e2el_ms")),
    "queue_time_ms": _Told("ms", "first time scheduled - arrival", attrgetter("latencies.queue_time_ms")),
    **_recorded("preemptions", "recomputed_tokens", "requeued_s", "swapped_out_blocks", "swapped_in_blocks"),
    **_recorded("cached_tokens", "aborted_tokens", "max_tokens", "priority", "replica", "released_s"),
    "reject_reason": _Told("", "why it was rejected", _reasons),
    "session_id": _Told("", "its conversation; the column is there where there are any", _names("session_ids")),
    "turn": _Told("", "its place in the conversation, from 1", _counts("turns")),
    "task_id": _Told("", "its agent's task; the column is there where there are any", _names("task_ids")),
    "task_requests": _Told("", "requests of that task, arrived or not", _counts("task_requests")),
    "attempt": _Told(*_CALLS["attempt"], _call("attempt")),
    "retry_of": _Told("", "the `request_id` of the first attempt; empty for that itself", _retry_of),
    "left_s": _Told(*_CALLS["left_s"], _call("left_s")),
}


def request_columns(records: Records, part: slice = ALL) -> dict[str, Column]:
    """Return the table of the requests in `part`, in workload order: times in seconds, latencies in milliseconds."""
    requests = records.requests.part(part)
    rows = range(len(records.requests.row))[part]
    of = _Part(rows, part, records, requests, request_latencies(replace(records, requests=requests)))
    found = {name: told.values(of) for name, told in _REQUESTS.items()}
    return {name: values for name, values in found.items() if values is not None}


def calls_from(table: Mapping[str, Any]) -> CallColumns | None:
    """Return the attempts of the requests' table. Raises KeyError where a first attempt is missing."""
    if "attempt" not in table:
        return None
    rows = {name: row for row, name in enumerate(table["request_id"])}
    firsts = [rows[first] if first else row for row, first in enumerate(table["retry_of"])]
    return CallColumns(table["attempt"], np.array(firsts, dtype=np.int64), table["left_s"])


def sessions_from(table: Mapping[str, Any]) -> dict[str, Any]:
    """Return the sessions and tasks of the requests' table, as `Records` has them."""
    found: dict[str, Any] = {}
    for name, count in (("session_id", "turn"), ("task_id", "task_requests")):
        if name in table:
            found[f"{name}s"] = tuple(text or None for text in table[name])
            found["turns" if count == "turn" else count] = table[count]
    return found


def step_columns(records: Records, part: slice = ALL) -> dict[str, Column]:
    """Return the rows in `part`: a step, or `repeat` equal decode steps with the counts of the first."""
    columns = {name: column[part] for name, column in plain_columns(records.rows).items()}
    return {**columns, "used_blocks": records.step_used_blocks[records.rows.first_step[part]]}


def replica_columns(records: Records, *, warmup_s: float = 0.0, cooldown_s: float = 0.0) -> dict[str, Column]:
    """One row a replica, with its group."""
    found = by_replica(records, warmup_s=warmup_s, cooldown_s=cooldown_s)
    names = [group.name for group in records.sizes for _ in range(group.replicas)]
    columns = plain_columns(found)
    del columns["replicas"]
    return {"replica": np.arange(records.replicas), "group": names, **columns}


def plain_columns(columns: DataclassInstance) -> dict[str, Any]:
    """Return columns as they are: a row a life of an autoscaled replica, a transfer, counts of drafts, a prefix."""
    return {field.name: getattr(columns, field.name) for field in fields(columns)}


def columns_from(kind: type[T], table: Mapping[str, Any]) -> T:
    """The inverse of `plain_columns` and of `step_columns`. Raises KeyError for another table."""
    return kind(**{field.name: table[field.name] for field in fields(kind)})


def requests_from(table: Mapping[str, Any], class_names: tuple[str, ...]) -> RequestColumns:
    """The inverse of `request_columns`. Raises KeyError for another table."""
    classes = {name: index for index, name in enumerate(class_names)}
    statuses = {name: index for index, name in enumerate(STATUS_NAMES)}
    special: dict[str, Any] = {
        "row": np.arange(len(table["request_id"]), dtype=np.int64),
        "class_index": np.array([classes[name] for name in table["class"]], dtype=np.int64),
        "status": np.array([statuses[name] for name in table["status"]], dtype=np.int64),
    }
    if "aborted_tokens" not in table:  # a folder from before there were aborts
        special["aborted_tokens"] = np.zeros(len(table["request_id"]), dtype=np.int64)
    names = [field.name for field in fields(RequestColumns)]
    return RequestColumns(**{name: special[name] if name in special else table[name] for name in names})


def _named(index: Ints, names: tuple[str, ...]) -> list[str]:
    found: list[str] = np.array(names, dtype=object)[index].tolist()
    return found


REQUEST_COLUMNS: Columns = {name: (told.unit, told.meaning) for name, told in _REQUESTS.items()}
STEP_COLUMNS: Columns = {**described(RowColumns), "used_blocks": ("blocks", "in use during the row's first step")}
REPLICA_COLUMNS: Columns = {
    "replica": ("", "its number"),
    "group": ("", "its group of the fleet"),
    **described(PartColumns),
}
