"""Vidur's tables of lengths: num_prefill_tokens and num_decode_tokens without arrival times."""

from scenarios.traces.format import Head, OpenTrace, Signature, TraceFormat
from scenarios.traces.formats.vidur import DERIVED, LENGTHS
from scenarios.traces.rows import Row, csv_fields, tokens


def _open(head: Head) -> OpenTrace:
    prefill, decode = (head.positions[name] for name in LENGTHS)
    width, answer = len(head.names), head.answer

    def parse(text: str) -> Row:
        fields = csv_fields(text, width)
        return 0.0, tokens(fields[prefill], LENGTHS[0]), answer(fields[decode], LENGTHS[1]), None

    return OpenTrace(head.rows, parse, "run", timed=False)


FORMAT = TraceFormat(
    name="vidur-lengths",
    title="Vidur lengths (no arrival times)",
    open=_open,
    csv=(Signature(LENGTHS, lacks=("arrived_at",)),),
    columns=(*LENGTHS, *DERIVED),
    times="it has no arrival times",
    also="lengths of a batch",
)
