"""The CSV that LLMServingSim's simulator writes: a prediction, not a measurement, to be scored as ours is.

Columns `request id, input, output, arrival, end_time, latency, queuing_delay, TTFT, TPOT`, times in nanoseconds; rows
in the order in which requests ended, sorted here by their id.
"""

from __future__ import annotations

from scenarios.measured.csv_rows import rows_of
from scenarios.measured.log_format import LogFile, LogFormat
from scenarios.measured.measured_run import MeasuredRun, Served, assemble, bad_row, number, token_count

COLUMNS = ("request id", "input", "output", "arrival", "end_time", "latency", "TTFT", "TPOT")


def _read(log: LogFile, which: int | None) -> MeasuredRun:
    file, found = log.name, []
    for line, fields in rows_of(log.lines, COLUMNS, file):
        if not fields["request id"].isdecimal():
            raise bad_row(file, line, f"request id is not a whole number: {fields['request id']!a}")
        found.append((int(fields["request id"]), line, fields))
    found.sort(key=lambda row: row[0])
    served = [
        Served(
            row=row,
            place=line,
            input_tokens=token_count(fields, "input", file, line),
            output_tokens=token_count(fields, "output", file, line),
            ttft_s=number(fields, "TTFT", file, line) / 1e9,
            e2el_s=number(fields, "latency", file, line) / 1e9,
            arrival_s=number(fields, "arrival", file, line) / 1e9,
            request_id=str(identity),
        )
        for row, (identity, line, fields) in enumerate(found)
    ]
    return assemble(served, format_="llmservingsim_sim", file=file, rows=len(served), at_client=False)


FORMAT = LogFormat("llmservingsim_sim", _read, columns=frozenset(COLUMNS))
