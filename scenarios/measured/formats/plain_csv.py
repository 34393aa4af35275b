"""Any CSV with our columns: the way in for logs of a tool that is not known here. A run's requests.csv.gz is one.

Needed are `input_tokens`, `output_tokens`, the arrival (`arrival_s` or `arrival_time_s`), and the latencies: either
`first_token_s` and `last_token_s` on the same clock, or `ttft_ms` and `e2el_ms`. Taken where they are there:
`request_id`, `scheduled_s`, `preemptions`, and `status`, of which all but `finished` count as failed.
"""

from scenarios.measured.measured_run import LogFile, LogFormat, MeasuredRun, Row, Served, assemble
from simulator.errors import InputError

REQUIRED = ("arrival_s", "input_tokens", "output_tokens")
_STAMPS, _LATENCIES = ("first_token_s", "last_token_s"), ("ttft_ms", "e2el_ms")


def _read(log: LogFile, which: int | None) -> MeasuredRun:
    rows = list(log.csv_rows(REQUIRED[1:]))
    done = [(row, each) for row, each in enumerate(rows) if each.fields.get("status", "finished") == "finished"]
    served = [_served(row, each) for row, each in done]
    why = "their status is not `finished`"
    return assemble(served, format_="csv", file=log.name, rows=len(rows), at_client=False, failed=why)


def _served(row: int, each: Row) -> Served:
    fields = each.fields
    arrival_s = each.number("arrival_s" if "arrival_s" in fields else "arrival_time_s")
    if all(column in fields for column in _STAMPS):
        first, last = (each.number(column) - arrival_s for column in _STAMPS)
    elif all(column in fields for column in _LATENCIES):
        first, last = (each.number(column) / 1e3 for column in _LATENCIES)
    else:
        either = f"{' and '.join(_STAMPS)}, or {' and '.join(_LATENCIES)}"
        raise InputError("no latencies in it", file=each.file, line=1, hint=f"give the columns {either}")
    return Served(
        row=row,
        place=each.place,
        input_tokens=each.tokens("input_tokens"),
        output_tokens=each.tokens("output_tokens"),
        ttft_s=first,
        e2el_s=last,
        arrival_s=arrival_s,
        scheduled_s=each.number("scheduled_s", optional=True),
        request_id=fields.get("request_id") or None,
        preemptions=each.whole("preemptions"),
    )


FORMAT = LogFormat("csv", _read, columns=frozenset())
