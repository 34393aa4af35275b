"""GuideLLM's trace_synthetic as CSV: timestamp in seconds, input_length, output_length.

The unit of the timestamps is told as in its JSON Lines (`scenarios.traces.formats.guidellm`).
"""

from __future__ import annotations

from scenarios.traces.format import UNIT_NS, Head, OpenTrace, Signature, TraceFormat
from scenarios.traces.formats.guidellm import stamps_unit
from scenarios.traces.formats.mooncake import LENGTHS
from scenarios.traces.rows import Row, csv_fields, ticks_ns, tokens


def _open(head: Head) -> OpenTrace:
    unit, note = stamps_unit(head)
    when, prompt, output = (head.positions[name] for name in LENGTHS)
    width, unit_ns, answer = len(head.names), UNIT_NS[unit], head.answer

    def parse(text: str) -> Row:
        fields = csv_fields(text, width)
        return (
            ticks_ns(fields[when], "timestamp", unit_ns),
            tokens(fields[prompt], "input_length"),
            answer(fields[output], "output_length"),
            None,
        )

    return OpenTrace(head.rows, parse, "ticks", unit, note=note)


FORMAT = TraceFormat(
    name="guidellm-csv",
    title="GuideLLM trace_synthetic as CSV",
    open=_open,
    csv=(Signature(LENGTHS),),
    columns=LENGTHS,
    times="timestamp is a number of seconds",
    also="times may be milliseconds, by their steps",
    units=("s", "ms", "us", "ns"),
)
