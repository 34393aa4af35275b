"""Dynamo's agentic Mooncake layout: JSON Lines in milliseconds whose rows wait for others (`wait_for`).

A row with `wait_for` comes `delay` and `tool_wait_ms` after the last of the answers that it waits for; one without
comes at its `timestamp`. `session_id` is the trajectory of one agent. Rows that hang together are one task, named by
its first row. `branches`, `prefix_reset` and `tool_events` say again what follows from these. Rows stand behind those
that they wait for. (ai-dynamo/dynamo, "Agent Simulation"; AgenticMooncakeRow of dynamo-data-gen 1.3)
"""

from typing import Any

from scenarios.traces.format import UNIT_NS, Head, OpenTrace, Signature, TraceFormat
from scenarios.traces.formats.mooncake import AGENTIC
from scenarios.traces.rows import Row, RowError, integers, json_object, name_list, ticks_ns, tokens, word

_ALSO = {
    "input_length": "input_tokens",
    "output_length": "output_tokens",
    "timestamp": "created_time",
    "delay": "delay_ms",
}


class _Rows:
    """The parser of one file, which knows when the rows so far arrived, and of which task they are."""

    def __init__(self, head: Head) -> None:
        self._answer = head.answer
        self._unit_ns = UNIT_NS[head.time_unit or "ms"]
        self._seen: dict[str, tuple[int, str]] = {}

    def parse(self, text: str) -> Row:
        fields = json_object(text)
        for name, other in _ALSO.items():
            if fields.get(name) is None:
                fields[name] = fields.get(other)
        request, waits = (
            word(fields.get("request_id"), "request_id"),
            name_list(fields.get("wait_for") or [], "wait_for"),
        )
        inputs = tokens(fields.get("input_length"), "input_length")
        outputs = self._answer(fields.get("output_length"), "output_length")
        extra: dict[str, Any] = {"request_id": request}
        known = [self._seen[name] for name in waits or () if name in self._seen]
        arrival = max((each for each, _ in known), default=0)
        if waits:
            wait = self._ticks(fields, "delay") + self._ticks(fields, "tool_wait_ms")
            arrival += wait
            extra |= {"after_request_ids": waits, "delay_s": wait / 1e9}
        elif fields["timestamp"] is None:
            raise RowError("neither timestamp nor wait_for")
        if fields["timestamp"] is not None:
            arrival = self._ticks(fields, "timestamp")
        extra["task_id"] = known[0][1] if known else request
        self._seen[request] = arrival, extra["task_id"]
        if fields.get("session_id") is not None:
            extra["session_id"] = word(fields["session_id"], "session_id")
        if fields.get("hash_ids"):
            extra["block_hashes"] = integers(fields["hash_ids"], "hash_ids")
        return arrival, inputs, outputs, extra

    def _ticks(self, fields: dict[str, Any], name: str) -> int:
        return 0 if fields.get(name) is None else ticks_ns(fields[name], name, self._unit_ns)


def _open(head: Head) -> OpenTrace:
    return OpenTrace(head.rows, _Rows(head).parse, "ticks", head.time_unit or "ms")


FORMAT = TraceFormat(
    name="dynamo",
    title="Dynamo's agentic Mooncake layout (`wait_for`)",
    open=_open,
    json=tuple(Signature(("request_id", mark), lacks=("arrival_time_s",)) for mark in AGENTIC),
    json_if_asked=(Signature(("request_id",)),),
    times="timestamp, delay and tool_wait_ms are numbers of milliseconds",
    also="what each row waits for, and then its tools; sessions, tasks, `hash_ids`",
    units=("ms", "s", "us", "ns"),
)
