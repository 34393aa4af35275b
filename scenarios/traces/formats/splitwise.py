"""splitwise-sim's traces: CSV with arrival_timestamp in seconds, prompt_size, token_size.

`request_type` 2 is a request to a language model; `batch_size` is 1 throughout. Applications other than 0 are classes.
"""

from typing import Any

from scenarios.traces.format import UNIT_NS, Head, OpenTrace, Signature, TraceFormat
from scenarios.traces.rows import Row, RowError, csv_fields, integer, ticks_ns, tokens, word

REQUIRED = ("request_id", "request_type", "arrival_timestamp", "prompt_size", "token_size")
_OPTIONAL = ("application_id", "batch_size")
_LLM = 2


def _open(head: Head) -> OpenTrace:
    name, kind, when, prompt, answer_size = (head.positions[column] for column in REQUIRED)
    application, batch = (head.positions.get(column) for column in _OPTIONAL)
    width, unit_ns, answer = len(head.names), UNIT_NS[head.time_unit or "s"], head.answer

    def parse(text: str) -> Row:
        fields = csv_fields(text, width)
        if integer(fields[kind], "request_type") != _LLM:
            raise RowError(f"request_type is not {_LLM} (a language model)", fields[kind])
        if batch is not None and integer(fields[batch], "batch_size") != 1:
            raise RowError("batch_size is not 1", fields[batch])
        extra: dict[str, Any] = {"request_id": word(fields[name].strip(), "request_id")} if fields[name].strip() else {}
        if application is not None and fields[application].strip() not in ("", "0"):
            extra["class"] = f"application {word(fields[application].strip(), 'application_id')}"
        return (
            ticks_ns(fields[when], "arrival_timestamp", unit_ns),
            tokens(fields[prompt], "prompt_size"),
            answer(fields[answer_size], "token_size"),
            extra,
        )

    return OpenTrace(head.rows, parse, "ticks", head.time_unit or "s")


FORMAT = TraceFormat(
    name="splitwise",
    title="splitwise-sim",
    open=_open,
    csv=(Signature(REQUIRED),),
    columns=(*REQUIRED, *_OPTIONAL),
    times="arrival_timestamp is in seconds",
    also="applications as classes",
    units=("s", "ms", "us", "ns"),
)
