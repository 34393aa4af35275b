"""BurstGPT: CSV in seconds from 0:00 of the first day, Request tokens, Response tokens (0 where a request failed).

The third release adds Session ID and Elapsed time, the duration of the whole answer, so that the time between an answer
and the next request of its session is known. The Model is the class. Total tokens is derived, and not read.
"""

from typing import Any

from scenarios.traces.format import UNIT_NS, Head, OpenTrace, Signature, TraceFormat
from scenarios.traces.rows import Row, RowError, Turns, csv_fields, ticks_ns, tokens, word

REQUIRED = ("Timestamp", "Request tokens", "Response tokens")
_OPTIONAL = ("Model", "Session ID", "Elapsed time")
_DERIVED = ("Total tokens", "Log Type")


def _open(head: Head) -> OpenTrace:
    positions, width = head.positions, len(head.names)
    when, request, response = (positions[name] for name in REQUIRED)
    model, session, elapsed = (positions.get(name) for name in _OPTIONAL)
    unit_ns, turns, answer = UNIT_NS[head.time_unit or "s"], Turns(), head.answer

    def parse(text: str) -> Row:
        fields = csv_fields(text, width)
        if _is_zero(fields[request]) and _is_zero(fields[response]):
            raise RowError("a failed request: no tokens at all")
        arrival = ticks_ns(fields[when], "Timestamp", unit_ns)
        inputs, outputs = tokens(fields[request], "Request tokens"), answer(fields[response], "Response tokens")
        extra: dict[str, Any] = {}
        if session is not None and fields[session].strip():
            took = None
            if elapsed is not None and fields[elapsed].strip():
                took = ticks_ns(fields[elapsed], "Elapsed time", unit_ns)
            arrival, extra = turns.turn(word(fields[session], "Session ID"), arrival, took_ns=took)
        if model is not None and fields[model].strip():
            extra["class"] = word(fields[model], "Model")
        return arrival, inputs, outputs, extra or None

    return OpenTrace(head.rows, parse, "ticks", head.time_unit or "s", remarks=turns.remarks)


def _is_zero(text: str) -> bool:
    return text.strip() in ("0", "0.0")


FORMAT = TraceFormat(
    name="burstgpt",
    title="BurstGPT",
    open=_open,
    csv=(Signature(REQUIRED),),
    columns=(*REQUIRED, *_OPTIONAL, *_DERIVED),
    times="Timestamp is in seconds from 0:00 of the first day",
    also="`Model` as class; sessions and the duration of answers (third release)",
    units=("s", "ms", "us", "ns"),
)
