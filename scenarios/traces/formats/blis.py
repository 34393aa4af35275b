"""BLIS's tracev2: CSV in microseconds. The YAML file beside it describes the run and is not needed to read the rows.

Rows whose `status` is error or timeout are set aside. `deadline_us` is a time on the clock of the arrivals (0: none),
not a span. `last_chunk_time_us` says when an answer ended. The SLO class is the class, or the tenant where there is
none. (github.com/inference-sim/inference-sim, sim/workload/tracev2.go)
"""

from collections.abc import Mapping, Sequence
from typing import Any

from scenarios.traces.format import Head, OpenTrace, Signature, TraceFormat
from scenarios.traces.rows import Row, RowError, Turns, count, csv_fields, integer, ticks_ns, tokens, word

REQUIRED = ("request_id", "arrival_time_us", "input_tokens", "output_tokens")
_OPTIONAL = (
    "tenant_id",
    "slo_class",
    "vllm_priority",
    "session_id",
    "prefix_group",
    "prefix_length",
    "deadline_us",
    "last_chunk_time_us",
    "status",
)
_US = 1000
_STATUS_OK = ("", "ok")


class _Rows:
    """The parser of one file, which knows the sessions so far."""

    def __init__(self, head: Head) -> None:
        self._head = head
        self.turns = Turns()

    def parse(self, text: str) -> Row:
        fields = csv_fields(text, len(self._head.names))
        row = {name: fields[place].strip() for name, place in self._head.positions.items()}
        if row.get("status", "") not in _STATUS_OK:
            raise RowError(f"status is {row['status']!a}: the request failed")
        arrival = ticks_ns(row["arrival_time_us"], "arrival_time_us", _US)
        inputs = tokens(row["input_tokens"], "input_tokens")
        outputs = self._head.answer(row["output_tokens"], "output_tokens")
        extra = _plain(row, arrival, inputs)
        if row.get("session_id"):
            arrival, session = self._turn(row, arrival, extra.get("request_id"))
            extra |= session
        return arrival, inputs, outputs, extra

    def _turn(self, row: Mapping[str, str], arrival: int, name: str | None) -> tuple[int, dict[str, Any]]:
        end = ticks_ns(row["last_chunk_time_us"], "last_chunk_time_us", _US) if row.get("last_chunk_time_us") else 0
        took = end - arrival if end > arrival else None
        return self.turns.turn(word(row["session_id"], "session_id"), arrival, took_ns=took, request_id=name)


def _plain(row: Mapping[str, str], arrival: int, inputs: int) -> dict[str, Any]:
    """The native columns of a row that do not depend on other rows."""
    extra: dict[str, Any] = {}
    if row["request_id"]:
        extra["request_id"] = word(row["request_id"], "request_id")
    if name := row.get("slo_class") or row.get("tenant_id"):
        extra["class"] = word(name, "slo_class")
    if row.get("vllm_priority"):
        extra["priority"] = integer(row["vllm_priority"], "vllm_priority")
    if row.get("prefix_group"):
        shared = count(row.get("prefix_length") or "0", "prefix_length")
        extra |= {"prefix_group": word(row["prefix_group"], "prefix_group"), "prefix_tokens": min(shared, inputs)}
    if row.get("deadline_us", "0") not in ("", "0"):
        deadline = ticks_ns(row["deadline_us"], "deadline_us", _US)
        if deadline < arrival:
            raise RowError("deadline_us is before the arrival", row["deadline_us"])
        extra["deadline_s"] = (deadline - arrival) / 1e9
    return extra


def _open(head: Head) -> OpenTrace:
    rows = _Rows(head)
    return OpenTrace(head.rows, rows.parse, "ticks", "us", remarks=rows.turns.remarks)


_COLUMNS: Sequence[str] = (*REQUIRED, *_OPTIONAL)

FORMAT = TraceFormat(
    name="blis",
    title="BLIS tracev2",
    open=_open,
    csv=(Signature(REQUIRED),),
    columns=tuple(_COLUMNS),
    names_unread=False,  # what the run made of the requests
    times="arrival_time_us is in microseconds",
    also="SLO class, priority, sessions, prefix groups, deadlines; errors and timeouts are set aside",
    units=("us",),
)
