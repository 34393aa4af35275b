"""Weka's conversations of coding agents: `t` in seconds from the start of each, `in`, `out`, `hash_ids`.

A row is one request with the conversation's `id`, or a whole conversation with its `requests`, one a line or one spread
over the file. Times restart at 0 with every conversation, and where they began is not recorded: all begin at 0, until
`workload.trace.arrival` says how they come. `hash_ids` name full blocks of 64 tokens (`block_size`), a partial last one
left out, and count within the conversation unless `hash_id_scope` is global. `api_time` is how long the answer took,
`think_time` the time before the request; calls of subagents are set aside. (github.com/callanjfox/kv-cache-tester)
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from scenarios.traces.format import UNIT_NS, Head, OpenTrace, Signature, TraceFormat, array_items
from scenarios.traces.rows import Row, RowError, Turns, integers, json_object, ticks_ns, tokens, word

BLOCK_SIZE = 64
_IDS = 1 << 40  # ids of one conversation, all of which differ from those of another
_SECOND_NS = UNIT_NS["s"]

_Item = str | tuple[Mapping[str, Any], Any]  # the text of a line, or a conversation and one of its requests


class _Rows:
    """The parser of one file, which knows the conversations so far."""

    def __init__(self, head: Head) -> None:
        self._answer = head.answer
        self._numbers: dict[str, int] = {}
        self._turns = Turns()

    def parse(self, item: _Item) -> Row:
        request = json_object(item) if type(item) is str else item[1]
        if type(request) is not dict:
            raise RowError("a request is not a JSON object", request)
        conversation: Mapping[str, Any] = request if type(item) is str else item[0]  # type: ignore[assignment] # a pair
        if request.get("type") == "subagent":
            raise RowError("calls of a subagent")
        name = word(conversation.get("id"), "id")
        inputs = tokens(request.get("in"), "in")
        outputs = self._answer(request.get("out"), "out")
        size = tokens(conversation.get("block_size", BLOCK_SIZE), "block_size")
        hashes = request.get("hash_ids")
        blocks = () if hashes is None else integers(hashes, "hash_ids")
        if conversation.get("hash_id_scope") != "global":
            blocks = self._own(blocks, name)
        arrival, extra = self._turns.turn(
            name,
            ticks_ns(request.get("t"), "t", _SECOND_NS),
            _optional_ns(request, "think_time"),
            _optional_ns(request, "api_time"),
        )
        if blocks:
            extra |= {"block_hashes": blocks, "hash_block_size": size}
        return arrival, inputs, outputs, extra

    def _own(self, blocks: tuple[int, ...], name: str) -> tuple[int, ...]:
        """Ids that no other conversation has."""
        if any(not 0 <= block < _IDS for block in blocks):
            raise RowError(f"a hash_id is not within 0 to {_IDS}")
        first = self._numbers.setdefault(name, len(self._numbers)) * _IDS
        return tuple(first + block for block in blocks)

    def remarks(self) -> list[str]:
        notes = self._turns.remarks()
        if len(self._numbers) > 1:
            notes.append("every conversation begins at 0: the trace does not say when they began")
        return notes


def _optional_ns(request: Mapping[str, Any], key: str) -> int | None:
    return None if request.get(key) is None else ticks_ns(request[key], key, _SECOND_NS)


def _items(head: Head) -> Iterator[tuple[int, _Item]]:
    """A request each: lines as they are, or the requests of the conversations."""
    nested = "requests" in head.names or head.kind == "text"
    for line, text in array_items(head.rows) if head.kind == "text" else head.rows:
        if not nested:
            yield line, text
            continue
        try:
            conversation = json_object(text)
        except RowError:
            yield line, text  # says so again when it is parsed
            continue
        requests = conversation.get("requests")
        for request in requests if type(requests) is list else [requests]:
            yield line, (conversation, request)


def _open(head: Head) -> OpenTrace:
    rows = _Rows(head)
    return OpenTrace(_items(head), rows.parse, "ticks", "s", remarks=rows.remarks)


FORMAT = TraceFormat(
    name="weka",
    title="Weka conversations (`t`, `in`, `out`)",
    open=_open,
    json=(Signature(("t", "in", "out")), Signature(("id", "requests"))),
    begins=re.compile(r'\s*\{(?=.*"requests"\s*:\s*\[).*"(t|type)"\s*:', re.DOTALL),
    times="t is in seconds",
    also="`hash_ids` of 64 tokens within a conversation, turns, `api_time`, `think_time`; times count "
    "from each conversation's start",
    units=("s",),
)
