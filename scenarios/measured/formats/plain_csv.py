"""Any CSV with our columns: the way in for logs of a tool that is not known here. A run's requests.csv.gz is one.

Needed are `input_tokens`, `output_tokens`, the arrival (`arrival_s` or `arrival_time_s`), and the latencies: either
`first_token_s` and `last_token_s` on the same clock, or `ttft_ms` and `e2el_ms`. Taken where they are there:
`request_id`, `scheduled_s`, `preemptions`, and `status`, of which all but `finished` count as failed.
"""

from __future__ import annotations

import math

from scenarios.measured.csv_rows import CsvRow, rows_of
from scenarios.measured.log_format import LogFile, LogFormat
from scenarios.measured.measured_run import MeasuredRun, Served, assemble, number, token_count, whole
from simulator.errors import InputError

REQUIRED = ("arrival_s", "input_tokens", "output_tokens")
_STAMPS, _LATENCIES = ("first_token_s", "last_token_s"), ("ttft_ms", "e2el_ms")


def _read(log: LogFile, which: int | None) -> MeasuredRun:
    file, served, row = log.name, [], -1
    for row, (line, fields) in enumerate(rows_of(log.lines, REQUIRED[1:], file)):
        if fields.get("status", "finished") == "finished":
            served.append(_served(row, line, fields, file))
    return assemble(
        served, format_="csv", file=file, rows=row + 1, at_client=False, failed="their status is not `finished`"
    )


def _served(row: int, line: int, fields: CsvRow, file: str) -> Served:
    name = "arrival_s" if "arrival_s" in fields else "arrival_time_s"
    arrival_s = number(fields, name, file, line)
    if all(column in fields for column in _STAMPS):
        first, last = (number(fields, column, file, line) - arrival_s for column in _STAMPS)
    elif all(column in fields for column in _LATENCIES):
        first, last = (number(fields, column, file, line) / 1e3 for column in _LATENCIES)
    else:
        either = f"{' and '.join(_STAMPS)}, or {' and '.join(_LATENCIES)}"
        raise InputError("no latencies in it", file=file, line=1, hint=f"give the columns {either}")
    scheduled = "scheduled_s" in fields
    return Served(
        row=row,
        place=line,
        input_tokens=token_count(fields, "input_tokens", file, line),
        output_tokens=token_count(fields, "output_tokens", file, line),
        ttft_s=first,
        e2el_s=last,
        arrival_s=arrival_s,
        scheduled_s=number(fields, "scheduled_s", file, line, optional=True) if scheduled else math.nan,
        request_id=fields.get("request_id") or None,
        preemptions=whole(fields, "preemptions", file, line),
    )


FORMAT = LogFormat("csv", _read, columns=frozenset())
