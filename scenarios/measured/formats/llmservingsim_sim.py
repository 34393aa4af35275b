"""The CSV that LLMServingSim's simulator writes: a prediction, not a measurement, to be scored as ours is.

Columns `request id, input, output, arrival, end_time, latency, queuing_delay, TTFT, TPOT`, times in nanoseconds; rows
in the order in which requests ended, sorted here by their id.
"""

from scenarios.measured.measured_run import LogFile, LogFormat, MeasuredRun, Served, assemble

COLUMNS = ("request id", "input", "output", "arrival", "end_time", "latency", "TTFT", "TPOT")


def _read(log: LogFile, which: int | None) -> MeasuredRun:
    found = []
    for fields in log.csv_rows(COLUMNS):
        identity = fields.fields["request id"]
        if not identity.isdecimal():
            raise fields.error(f"request id is not a whole number: {identity!a}")
        found.append((int(identity), fields))
    found.sort(key=lambda each: each[0])
    served = [
        Served(
            row=row,
            place=fields.place,
            input_tokens=fields.tokens("input"),
            output_tokens=fields.tokens("output"),
            ttft_s=fields.number("TTFT") / 1e9,
            e2el_s=fields.number("latency") / 1e9,
            arrival_s=fields.number("arrival") / 1e9,
            request_id=str(identity),
        )
        for row, (identity, fields) in enumerate(found)
    ]
    return assemble(served, format_="llmservingsim_sim", file=log.name, rows=len(served), at_client=False)


FORMAT = LogFormat("llmservingsim_sim", _read, columns=frozenset(COLUMNS))
