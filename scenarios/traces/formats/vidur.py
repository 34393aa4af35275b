"""Vidur's traces: CSV with arrived_at in seconds, num_prefill_tokens, num_decode_tokens."""

from collections.abc import Sequence

from scenarios.traces.format import UNIT_NS, Head, OpenTrace, Signature, TimeUnit, TraceFormat
from scenarios.traces.rows import Row, csv_fields, ticks_ns, tokens

LENGTHS = ("num_prefill_tokens", "num_decode_tokens")
DERIVED = ("num_total_tokens", "pd_ratio")  # what follows from the two, and is not read


def _open(head: Head) -> OpenTrace:
    return lengths_csv(head, ("arrived_at", *LENGTHS), head.time_unit or "s")


def lengths_csv(head: Head, columns: Sequence[str], unit: TimeUnit, note: str | None = None) -> OpenTrace:
    """The rows of a CSV file whose `columns` are a time in `unit`, the tokens of the prompt and those of the answer."""
    stamp, inputs, outputs = columns
    when, prompt, output = (head.positions[name] for name in columns)
    width, unit_ns, answer = len(head.names), UNIT_NS[unit], head.answer

    def parse(text: str) -> Row:
        fields = csv_fields(text, width)
        arrival = ticks_ns(fields[when], stamp, unit_ns)
        return arrival, tokens(fields[prompt], inputs), answer(fields[output], outputs), None

    return OpenTrace(head.rows, parse, "ticks", unit, note=note)


FORMAT = TraceFormat(
    name="vidur",
    title="Vidur",
    open=_open,
    csv=(Signature(("arrived_at", *LENGTHS)),),
    columns=("arrived_at", *LENGTHS, *DERIVED),
    times="arrived_at is in seconds",
    units=("s", "ms", "us", "ns"),
)
