"""The two tables of a run, and fast CSV for them: columns to gzipped bytes and back, without a bit lost.

A column is a numpy array (int64 or float64) or a list of strings. Floats are written as `repr` writes them, which reads
back as the same float; NaN is an empty field. The same columns in the same order make the same bytes.
"""

from __future__ import annotations

import csv
import gzip
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from itertools import chain, groupby, islice, repeat
from pathlib import Path
from typing import Any

import numpy as np
from pydantic_core import to_json

from simulator.metrics.fleet_metrics import by_replica
from simulator.metrics.latency import request_latencies
from simulator.results.records import (
    CallColumns,
    Floats,
    Ints,
    LifeColumns,
    Records,
    RequestColumns,
    RowColumns,
    Status,
    TransferColumns,
)
from simulator.results.shared_prefixes import PrefixColumns

Column = Floats | Ints | list[str]

CHUNK_ROWS = 4096  # formatted at once: as text, a row takes two kilobytes of memory
PART_ROWS = 16 * CHUNK_ROWS  # in memory at once, of a table that lies in files
ALL = slice(None)
STATUS_NAMES = tuple(status.name.lower() for status in Status)
_TEXTS = ("request_id", "class", "status", "reject_reason", "session_id", "retry_of")
_MUST_QUOTE = ',"\r\n'
_PLAIN = (1e-4, 1e16)  # from here to there `repr` writes a float without an exponent


def parts(count: int) -> Iterator[slice]:
    """So many rows as slices, of which one at a time is turned into text."""
    return (slice(start, start + PART_ROWS) for start in range(0, max(count, 1), PART_ROWS))


def request_columns(records: Records, part: slice = ALL) -> dict[str, Column]:
    """One row a request, in workload order: its name, its times in seconds, its latencies in milliseconds.

    `part` are the requests that are wanted.
    """
    rows = range(len(records.requests.row))[part]
    records = replace(records, requests=records.requests.part(part))
    requests = records.requests
    reasons = [records.reject_reasons.get(row, "") for row in rows] if records.reject_reasons else [""] * len(rows)
    ids = _texts_of(list(rows)) if records.request_ids is None else list(records.request_ids[part])
    latencies = request_latencies(records)
    return {
        "request_id": ids,
        "class": _named(requests.class_index, records.class_names),
        "status": _named(requests.status, STATUS_NAMES),
        "arrival_s": requests.arrival_s,
        "scheduled_s": requests.scheduled_s,
        "first_token_s": requests.first_token_s,
        "last_token_s": requests.last_token_s,
        "input_tokens": requests.input_tokens,
        "output_tokens": requests.output_tokens,
        "ttft_ms": latencies.ttft_ms,
        "tpot_ms": latencies.tpot_ms,
        "e2el_ms": latencies.e2el_ms,
        "queue_time_ms": latencies.queue_time_ms,
        "preemptions": requests.preemptions,
        "recomputed_tokens": requests.recomputed_tokens,
        "requeued_s": requests.requeued_s,
        "swapped_out_blocks": requests.swapped_out_blocks,
        "swapped_in_blocks": requests.swapped_in_blocks,
        "cached_tokens": requests.cached_tokens,
        "aborted_tokens": requests.aborted_tokens,
        "max_tokens": requests.max_tokens,
        "priority": requests.priority,
        "replica": requests.replica,
        "released_s": requests.released_s,
        "reject_reason": reasons,
        **_session_columns(records, part),
        **_attempt_columns(records, rows),
    }


def _session_columns(records: Records, part: slice) -> dict[str, Column]:
    """The session of a request and its place in it; no columns where there is none."""
    if records.session_ids is None or records.turns is None:
        return {}
    return {"session_id": [session or "" for session in records.session_ids[part]], "turn": records.turns[part]}


def _attempt_columns(records: Records, rows: range) -> dict[str, Column]:
    """Which attempt at a request this is, of which first one, and when its client left; no columns without clients."""
    calls = records.calls
    if calls is None:
        return {}
    part = slice(rows.start, rows.stop)
    each = zip(rows, calls.first_row[part].tolist(), strict=True)
    firsts = [records.request_id(first) if first != row else "" for row, first in each]
    return {"attempt": calls.attempt[part], "retry_of": firsts, "left_s": calls.left_s[part]}


def calls_from(table: Mapping[str, Any]) -> CallColumns | None:
    """The inverse, for the attempts. Raises KeyError where a first attempt is missing."""
    if "attempt" not in table:
        return None
    rows = {name: row for row, name in enumerate(table["request_id"])}
    firsts = [rows[first] if first else row for row, first in enumerate(table["retry_of"])]
    return CallColumns(table["attempt"], np.array(firsts, dtype=np.int64), table["left_s"])


def sessions_from(table: Mapping[str, Any]) -> dict[str, Any]:
    """The inverse, for the sessions, as `Records` has them."""
    if "session_id" not in table:
        return {}
    return {"session_ids": tuple(session or None for session in table["session_id"]), "turns": table["turn"]}


def step_columns(records: Records, part: slice = ALL) -> dict[str, Column]:
    """One row a step, or a run of `repeat` equal decode steps; counts are those of the row's first step.

    `part` are the rows that are wanted.
    """
    leading = ("replica", "first_step", "repeat", "start_s", "end_s")
    others = [field.name for field in fields(RowColumns) if field.name not in leading]
    table: dict[str, Column] = {name: getattr(records.rows, name)[part] for name in (*leading, *others)}
    table["used_blocks"] = records.step_used_blocks[records.rows.first_step[part]]
    return table


def replica_columns(records: Records, *, warmup_s: float = 0.0, cooldown_s: float = 0.0) -> dict[str, Column]:
    """One row a replica, with its group."""
    found = by_replica(records, warmup_s=warmup_s, cooldown_s=cooldown_s)
    names = [group.name for group in records.sizes for _ in range(group.replicas)]
    columns: dict[str, Column] = {field.name: getattr(found, field.name) for field in fields(found)}
    del columns["replicas"]
    return {"replica": np.arange(records.replicas), "group": names, **columns}


def plain_columns(columns: LifeColumns | TransferColumns | PrefixColumns) -> dict[str, Column]:
    """The columns as they are: one row a life of an autoscaled replica, a transfer of KV, or a shared prefix."""
    return {field.name: getattr(columns, field.name) for field in fields(columns)}


def lives_from(table: Mapping[str, Any]) -> LifeColumns:
    """The inverse, for lives. Raises KeyError for another table."""
    return LifeColumns(**{field.name: table[field.name] for field in fields(LifeColumns)})


def transfers_from(table: Mapping[str, Any]) -> TransferColumns:
    """The inverse, for transfers. Raises KeyError for another table."""
    return TransferColumns(**{field.name: table[field.name] for field in fields(TransferColumns)})


def prefixes_from(table: Mapping[str, Any]) -> PrefixColumns:
    """The inverse, for prefixes. Raises KeyError for another table."""
    return PrefixColumns(**{field.name: table[field.name] for field in fields(PrefixColumns)})


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


def rows_from(table: Mapping[str, Any]) -> RowColumns:
    """The inverse of `step_columns`. Raises KeyError for another table."""
    return RowColumns(**{field.name: table[field.name] for field in fields(RowColumns)})


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
    if name in _TEXTS:
        return list(map(sys.intern, texts))
    if name.endswith(("_s", "_ms")):
        if "" in texts:
            return np.array([float(text or "nan") for text in texts], dtype=np.float64)
        return np.array(list(map(float, texts)), dtype=np.float64)
    return np.array(list(map(int, texts)), dtype=np.int64)


def _joined(parts: list[Any]) -> Column:
    return list(chain.from_iterable(parts)) if isinstance(parts[0], list) else np.concatenate(parts)


def _named(index: Ints, names: tuple[str, ...]) -> list[str]:
    found: list[str] = np.array(names, dtype=object)[index].tolist()
    return found


def _chunks(table: Mapping[str, Column]) -> Iterator[str]:
    columns = list(table.values())
    count = len(columns[0])
    for start in range(0, count, CHUNK_ROWS):
        cells = [_cells(column[start : start + CHUNK_ROWS]) for column in columns]
        rows = zip(*_few_cells(cells, min(CHUNK_ROWS, count - start)), strict=True)
        yield "\n".join(map(",".join, rows)) + "\n"


def _few_cells(columns: Iterable[list[str] | str], rows: int) -> Iterator[Iterable[str]]:
    """The cells of so many rows, column by column; neighbouring columns that are the same throughout as one."""
    for is_same, group in groupby(columns, lambda cells: isinstance(cells, str)):
        if is_same:
            yield repeat(",".join(map(str, group)), rows)
        else:
            yield from group


def _cells(column: Column) -> list[str] | str:
    """What CSV has of each value; one text where it is the same in all rows."""
    if isinstance(column, list):
        if column.count(column[0]) == len(column):
            return _quoted(column[0])
        return list(map(_quoted, column)) if _must_quote("".join(column)) else column
    first = column[0].item()
    bits = column.view(f"i{column.itemsize}")  # so that NaN equals NaN and -0.0 is not 0.0
    if (bits == bits[0]).all():  # most counts are zero throughout
        return "" if first != first else repr(first)
    texts = _texts_of(column.tolist())
    if column.dtype.kind == "f":
        size = np.abs(column)
        plain = (size >= _PLAIN[0]) & (size < _PLAIN[1]) | (size == 0.0)
        for index in np.flatnonzero(~plain).tolist():
            value = column.item(index)
            texts[index] = "" if value != value else repr(value)
    return texts


def _texts_of(numbers: Sequence[float]) -> list[str]:
    """`repr` of each number, but for floats that have an exponent.

    Both write the shortest digits that read back as the same float. This is a tenth of the time: most of a table's.
    """
    text = to_json(numbers)[1:-1].decode()
    return text.split(",") if text else []


def _must_quote(text: str) -> bool:
    return any(mark in text for mark in _MUST_QUOTE)


def _quoted(text: str) -> str:
    return '"' + text.replace('"', '""') + '"' if _must_quote(text) else text
