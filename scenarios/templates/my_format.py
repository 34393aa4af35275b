"""A trace format of one's own: lines of a log as `2026-01-31T08:00:00Z model=chat in=250 out=80`.

    batchlab trace inspect my_format.log --format ./my_format.py:FORMAT
    batchlab trace convert my_format.log trace.csv --format ./my_format.py:FORMAT
    batchlab run my-scenario.yaml --set workload.trace.format=./my_format.py:FORMAT

A format is a `TraceFormat`. `open` is given the beginning of a file and its lines, and returns the rows with a function
that reads one: arrival, prompt tokens, output tokens, and optional values under native names (`class`, `session_id`,
`priority`, ...). A line that cannot be read raises `RowError`; it is left out, and the reader counts it. Arrivals are
nanoseconds since 1970 on the clock "utc", seconds of the run on the clock "run". `scenarios/traces/format.py` has the
rest. For a CSV file or JSON Lines with other names than batchlab's no format is needed: `columns` of the trace says how
its columns are called.
"""

import re

from scenarios.traces.format import Head, OpenTrace, TraceFormat
from scenarios.traces.rows import Row, RowError, Stamps, tokens

LINE = re.compile(r"(\S+) model=(\S+) in=(\d+) out=(\d+)")


def open_log(head: Head) -> OpenTrace:
    """Read each line of the log."""
    stamps = Stamps("time")

    def parse(text: str) -> Row:
        match = LINE.fullmatch(text.strip())
        if match is None:
            raise RowError("not a line of this log", text)
        time, model, prompt, answer = match.groups()
        return stamps.parse(time), tokens(prompt, "in"), head.answer(answer, "out"), {"class": model}

    return OpenTrace(head.rows, parse, "utc", remarks=stamps.remarks)


FORMAT = TraceFormat(name="my_format", title="a log of my own", open=open_log, begins=LINE)
