"""AIPerf's dialect of Mooncake's layout: JSON Lines in milliseconds whose rows may be turns of a session.

A turn has a `timestamp`, or a `delay` after the answer before it in its `session_id`, or neither: then it follows that
answer at once. Prompts may stand as `text_input` or `messages` in place of `input_length`; their tokens are then
estimated. (AIPerf, "Trace Replay with Mooncake Traces")
"""

from typing import Any

from scenarios.traces.format import UNIT_NS, Head, OpenTrace, Signature, TraceFormat
from scenarios.traces.formats.mooncake import AGENTIC, LENGTHS
from scenarios.traces.rows import (
    CHARACTERS_A_TOKEN,
    Row,
    RowError,
    Turns,
    integers,
    json_object,
    messages_text,
    plural,
    text_tokens,
    ticks_ns,
    tokens,
    word,
)


class _Rows:
    """The parser of one file, which knows the sessions so far."""

    def __init__(self, head: Head) -> None:
        self._answer = head.answer
        self._unit_ns = UNIT_NS[head.time_unit or "ms"]
        self._turns = Turns()
        self._estimated = 0

    def parse(self, text: str) -> Row:
        fields = json_object(text)
        inputs, estimated = _prompt(fields)
        outputs = self._answer(fields.get("output_length"), "output_length")
        stamp, delay = fields.get("timestamp"), fields.get("delay")
        arrival = None if stamp is None else ticks_ns(stamp, "timestamp", self._unit_ns)
        wait = None if delay is None else ticks_ns(delay, "delay", self._unit_ns)
        hashes = fields.get("hash_ids")
        extra: dict[str, Any] = {} if hashes is None else {"block_hashes": integers(hashes, "hash_ids")}
        session = fields.get("session_id")
        if session is not None:
            arrival, turn = self._turns.turn(word(session, "session_id"), arrival, wait)
            extra |= turn
        elif arrival is None and wait:
            raise RowError("a delay without a session_id: it does not say after which answer", delay)
        self._estimated += estimated
        return arrival or 0, inputs, outputs, extra or None

    def remarks(self) -> list[str]:
        notes = self._turns.remarks()
        if self._estimated:
            notes.append(
                f"{plural(self._estimated, 'prompt')} given as text: tokens estimated as characters"
                f" / {CHARACTERS_A_TOKEN}"
            )
        return notes


def _prompt(fields: dict[str, Any]) -> tuple[int, bool]:
    """Tokens of the prompt, and whether they are an estimate."""
    if fields.get("input_length") is not None:
        return tokens(fields["input_length"], "input_length"), False
    if type(fields.get("text_input")) is str:
        return text_tokens(fields["text_input"]), True
    if fields.get("messages") is not None:
        return text_tokens(messages_text(fields["messages"], "messages")), True
    raise RowError("neither input_length nor text_input")


def _open(head: Head) -> OpenTrace:
    rows = _Rows(head)
    return OpenTrace(head.rows, rows.parse, "ticks", head.time_unit or "ms", remarks=rows.remarks)


FORMAT = TraceFormat(
    name="aiperf",
    title="AIPerf's Mooncake dialect (sessions, `delay`, `text_input`)",
    open=_open,
    json=(
        Signature(("delay",), lacks=("timestamp", *AGENTIC)),
        Signature(("text_input",), lacks=("input_length",)),
        Signature(("messages", "output_length"), lacks=("input_length",)),
        Signature(("session_id", "input_length", "output_length"), lacks=("timestamp", "chat_id", *AGENTIC)),
        Signature((*LENGTHS, "session_id"), lacks=("hash_ids", "chat_id", *AGENTIC)),
        Signature((*LENGTHS, "hash_ids", "session_id"), lacks=("chat_id", *AGENTIC)),
    ),
    json_if_asked=(Signature(()),),
    times="timestamp and delay are numbers of milliseconds",
    also="sessions with `delay`; prompts as text, estimated",
    units=("ms", "s", "us", "ns"),
)
