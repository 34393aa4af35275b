"""Any CSV with our columns: the way in for logs of a tool that is not known here. A run's requests.csv.gz is one.

Needed are `input_tokens`, `output_tokens`, the arrival (`arrival_s` or `arrival_time_s`), and the latencies: either
`first_token_s` and `last_token_s` on the same clock, or `ttft_ms` and `e2el_ms`. Taken where they are there:
`request_id`, `scheduled_s`, `preemptions`, and `status`, of which all but `finished` count as failed.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

from scenarios.measured.log import MeasuredRun, Served, assemble, bad_row, number, token_count, whole
from scenarios.traces.lines import Line
from scenarios.traces.rows import RowError, split_csv
from simulator.errors import InputError

REQUIRED = ("arrival_s", "input_tokens", "output_tokens")
_STAMPS, _LATENCIES = ("first_token_s", "last_token_s"), ("ttft_ms", "e2el_ms")
Row = Mapping[str, str]


def read(lines: list[Line], file: str) -> MeasuredRun:
    """The log from its lines. Raises InputError with the line of what is wrong."""
    served = []
    row = -1
    for row, (line, fields) in enumerate(rows_of(lines, REQUIRED[1:], file)):
        if fields.get("status", "finished") == "finished":
            served.append(_served(row, line, fields, file))
    return assemble(
        served, format_="csv", file=file, rows=row + 1, at_client=False, failed="their status is not `finished`"
    )


def rows_of(lines: list[Line], wanted: Sequence[str], file: str) -> Iterator[tuple[int, Row]]:
    """Each row by the names of the header. Raises InputError for columns that are missing and rows of another width."""
    number_, first = lines[0]
    header = [name.strip() for name in _split(first, file, number_)]
    if missing := [name for name in wanted if name not in header]:
        seen = ", ".join(header[:15])
        raise InputError(f"no column {', '.join(missing)}", file=file, line=number_, hint=f"columns seen: {seen}")
    for line, text in lines[1:]:
        fields = _split(text, file, line)
        if len(fields) != len(header):
            raise bad_row(file, line, f"{len(fields)} fields, but the header has {len(header)}")
        yield line, dict(zip(header, fields, strict=True))


def _split(text: str, file: str, line: int) -> list[str]:
    try:
        return split_csv(text)
    except RowError as error:
        raise bad_row(file, line, error.detail) from None


def _served(row: int, line: int, fields: Row, file: str) -> Served:
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
