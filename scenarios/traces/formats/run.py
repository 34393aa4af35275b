"""A run's own requests.csv.gz as a trace: the requests that it served, at the times at which they arrived.

Arrivals, lengths, caps, priorities, classes and names come back to the bit, so the same scenario on this trace gives
the same results. Lost, for the table does not hold them: sessions, deadlines, predicted lengths, and what prompts
share. Requests that did not finish are left out and counted: how long their answers would have been is not in the
table.
"""

from scenarios.traces.format import Head, OpenTrace, Signature, TraceFormat
from scenarios.traces.formats.native import OPTIONAL, seconds
from scenarios.traces.rows import Row, RowError, csv_fields, tokens

REQUIRED = ("request_id", "status", "arrival_s", "input_tokens", "output_tokens")
_KEPT = ("request_id", "class", "priority", "max_tokens")


def _open(head: Head) -> OpenTrace:
    positions, width, answer = head.positions, len(head.names), head.answer
    status, arrival, inputs, outputs = (positions[name] for name in REQUIRED[1:])
    optional = [(positions[name], name, OPTIONAL[name]) for name in _KEPT if name in positions]

    def parse(text: str) -> Row:
        fields = csv_fields(text, width)
        if fields[status] != "finished":
            raise RowError("status is not `finished`: the length of the answer is not known")
        return (
            seconds(fields[arrival], "arrival_s"),
            tokens(fields[inputs], "input_tokens"),
            answer(fields[outputs], "output_tokens"),
            {name: convert(fields[place], name) for place, name, convert in optional if fields[place].strip()},
        )

    return OpenTrace(head.rows, parse, "run")


FORMAT = TraceFormat(
    name="run",
    title="the requests.csv.gz of a run",
    open=_open,
    csv=(Signature(REQUIRED),),
    columns=tuple(dict.fromkeys((*REQUIRED, *_KEPT))),
    names_unread=False,  # what the run made of the requests
    times="arrival_s is in seconds",
    also="the requests.csv.gz of a run: names, classes, priorities, caps; finished requests only; times are kept",
    units=("s",),
)
