"""The CSV that LLMServingSim's simulator writes: a prediction, not a measurement, to be scored as ours is.

Columns `request id, input, output, arrival, end_time, latency, queuing_delay, TTFT, TPOT`, times in nanoseconds; rows
in the order in which requests ended, sorted here by their id.
"""

from __future__ import annotations

from scenarios.measured.log import MeasuredRun, Served, assemble, bad_row, number, token_count
from scenarios.measured.plain_csv import rows_of
from scenarios.traces.lines import Line

COLUMNS = ("request id", "input", "output", "arrival", "end_time", "latency", "TTFT", "TPOT")


def read(lines: list[Line], file: str) -> MeasuredRun:
    """The prediction from its lines. Raises InputError with the line of what is wrong."""
    found = []
    for line, fields in rows_of(lines, COLUMNS, file):
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
