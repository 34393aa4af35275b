"""Vidur's traces: CSV with arrived_at in seconds, num_prefill_tokens, num_decode_tokens."""

from __future__ import annotations

from scenarios.traces.format import UNIT_NS, Head, OpenTrace, Signature, TraceFormat
from scenarios.traces.rows import Row, csv_fields, ticks_ns, tokens

LENGTHS = ("num_prefill_tokens", "num_decode_tokens")
DERIVED = ("num_total_tokens", "pd_ratio")  # what follows from the two, and is not read


def _open(head: Head) -> OpenTrace:
    when, prefill, decode = (head.positions[name] for name in ("arrived_at", *LENGTHS))
    width, unit_ns, answer = len(head.names), UNIT_NS[head.time_unit or "s"], head.answer

    def parse(text: str) -> Row:
        fields = csv_fields(text, width)
        return (
            ticks_ns(fields[when], "arrived_at", unit_ns),
            tokens(fields[prefill], "num_prefill_tokens"),
            answer(fields[decode], "num_decode_tokens"),
            None,
        )

    return OpenTrace(head.rows, parse, "ticks", head.time_unit or "s")


FORMAT = TraceFormat(
    name="vidur",
    title="Vidur",
    open=_open,
    csv=(Signature(("arrived_at", *LENGTHS)),),
    columns=("arrived_at", *LENGTHS, *DERIVED),
    times="arrived_at is in seconds",
    units=("s", "ms", "us", "ns"),
)
