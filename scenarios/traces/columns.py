"""The usable rows of a trace as columns, filled while the file streams by."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from typing import Any

from scenarios.traces.format import OpenTrace
from scenarios.traces.options import TraceOptions
from scenarios.traces.rows import RowError, Tally, plural

# A window's end ends the reading, but only after this many rows beyond it: rows may be slightly out of order.
PATIENCE_ROWS = 10_000


@dataclass(slots=True)
class Columns:
    """The rows that were kept, one place a request in file order, and counts of the others.

    `arrival` is in nanoseconds (array of int64) or seconds (array of float64); `row` counts the file's data rows from
    0 and `line` its lines from 1. `extra` holds the optional columns, by native name, None where a row has no value.
    """

    arrival: array[int] | array[float]
    inputs: array[int] = field(default_factory=lambda: array("q"))
    outputs: array[int] = field(default_factory=lambda: array("q"))
    row: array[int] = field(default_factory=lambda: array("q"))
    line: array[int] = field(default_factory=lambda: array("q"))
    extra: dict[str, list[Any]] = field(default_factory=dict)
    rows_seen: int = 0
    before: int = 0
    after: int = 0
    stopped_at: int | None = None  # the line where reading ended before the file did
    stop_reason: str = ""

    @property
    def in_ns(self) -> bool:
        return self.arrival.typecode == "q"

    def window_notes(self) -> list[str]:
        notes = []
        if self.before:
            notes.append(f"left out {plural(self.before, 'row')} before start_s")
        if self.after:
            notes.append(f"left out {plural(self.after, 'row')} at or after the end of duration_s")
        if self.stopped_at is not None:
            notes.append(f"stopped reading at line {self.stopped_at:,}: {self.stop_reason}")
        return notes


def collect(trace: OpenTrace, options: TraceOptions, skipped: Tally) -> Columns:
    """Read rows until the file, the window or the limit ends; bad ones go to `skipped`."""
    parse, in_ns = trace.parse, trace.clock != "run"
    columns = Columns(array("q") if in_ns else array("d"))
    scale = 1_000_000_000 if in_ns else 1
    start = options.start_s * scale
    end = float("inf") if options.duration_s is None else start + options.duration_s * scale
    windowed = start > 0 or options.duration_s is not None
    limit = options.limit if options.limit is not None else -1
    origin: float | None = None if in_ns else 0.0  # what only says how many seconds counts from 0, not from a date
    beyond = row = 0
    for row, (line, item) in enumerate(trace.rows, 1):
        try:
            arrival, inputs, outputs, extra = parse(item)
        except RowError as error:
            skipped.add(line, error.reason, error.detail)
            continue
        if windowed:
            origin = arrival if origin is None else origin
            if start > 0 and arrival - origin < start:
                columns.before += 1
                continue
            if arrival - origin >= end:
                columns.after += 1
                beyond += 1
                if beyond < PATIENCE_ROWS:
                    continue
                columns.stopped_at, columns.stop_reason = line, f"{beyond:,} rows on end lay after the window"
                break
            beyond = 0
        if extra:
            _add_extra(columns, extra)
        columns.arrival.append(arrival)  # type: ignore[arg-type]  # int where in_ns
        columns.inputs.append(inputs)
        columns.outputs.append(outputs)
        columns.row.append(row - 1)
        columns.line.append(line)
        if len(columns.inputs) == limit:
            columns.stopped_at, columns.stop_reason = line, f"the limit of {plural(limit, 'request')}"
            break
    columns.rows_seen = row
    _pad(columns)
    return columns


def _add_extra(columns: Columns, extra: Any) -> None:
    place = len(columns.inputs)
    for name, value in extra.items():
        column = columns.extra.setdefault(name, [])
        if len(column) < place:
            column.extend([None] * (place - len(column)))
        column.append(value)


def _pad(columns: Columns) -> None:
    for column in columns.extra.values():
        column.extend([None] * (len(columns.inputs) - len(column)))
