"""GuideLLM's trace_synthetic as CSV: timestamp in seconds, input_length, output_length.

The unit of the timestamps is told as in its JSON Lines (`scenarios.traces.formats.guidellm`).
"""

from scenarios.traces.format import Head, OpenTrace, Signature, TraceFormat
from scenarios.traces.formats.guidellm import stamps_unit
from scenarios.traces.formats.mooncake import LENGTHS
from scenarios.traces.formats.vidur import lengths_csv


def _open(head: Head) -> OpenTrace:
    unit, note = stamps_unit(head)
    return lengths_csv(head, LENGTHS, unit, note)


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
