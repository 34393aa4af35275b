"""Bailian's traces of Qwen: JSON Lines with chat_id and parent_chat_id, in seconds.

`hash_ids` name blocks of 16 tokens, the last one perhaps partial. A request follows the answer of its parent (-1:
none), and a chat may have several children: the requests of one conversation are a tree, whose root names the session.
Finding the root takes an entry for every chat of the file, some 250 bytes each. `type` (text, search, image, file,
thinking) is the class.
"""

from typing import Any

from scenarios.traces.format import UNIT_NS, Head, OpenTrace, Signature, TraceFormat
from scenarios.traces.rows import Row, integers, json_object, plural, ticks_ns, tokens, word

BLOCK_SIZE = 16
_ROOT = "-1"


class _Chats:
    """Each chat's root and arrival, by its id."""

    def __init__(self, head: Head) -> None:
        self._head = head
        self._unit_ns = UNIT_NS[head.time_unit or "s"]
        self._known: dict[str, tuple[str, int]] = {}
        self._misfits = 0
        self._children = 0

    def parse(self, text: str) -> Row:
        fields = json_object(text)
        chat, parent = word(fields.get("chat_id"), "chat_id"), word(fields.get("parent_chat_id"), "parent_chat_id")
        arrival = ticks_ns(fields.get("timestamp"), "timestamp", self._unit_ns)
        inputs = tokens(fields.get("input_length"), "input_length")
        outputs = self._head.answer(fields.get("output_length"), "output_length")
        extra: dict[str, Any] = {"request_id": chat}
        if fields.get("type") is not None:
            extra["class"] = word(fields["type"], "type")
        if fields.get("hash_ids") is not None:
            hashes = integers(fields["hash_ids"], "hash_ids")
            if len(hashes) == -(-inputs // BLOCK_SIZE):
                extra |= {"block_hashes": hashes, "hash_block_size": BLOCK_SIZE}
            else:
                self._misfits += 1
        before = None if parent == _ROOT else self._known.get(parent)
        root = before[0] if before else chat if parent == _ROOT else parent
        extra["session_id"] = root
        if before and arrival >= before[1]:
            extra |= {"after_request_id": parent, "delay_s": (arrival - before[1]) / 1e9}
            self._children += 1
        self._known[chat] = (root, arrival)
        return arrival, inputs, outputs, extra

    def remarks(self) -> list[str]:
        notes = []
        if self._children:
            notes.append("delays since a parent's answer include the answer's time, which the trace does not record")
        if self._misfits:
            notes.append(f"dropped the hashes of {plural(self._misfits, 'row')}: not one for each {BLOCK_SIZE} tokens")
        return notes


def _open(head: Head) -> OpenTrace:
    chats = _Chats(head)
    return OpenTrace(head.rows, chats.parse, "ticks", head.time_unit or "s", remarks=chats.remarks)


FORMAT = TraceFormat(
    name="bailian",
    title="Bailian (Qwen, session traces in seconds)",
    open=_open,
    json=(Signature(("chat_id", "parent_chat_id")),),
    times="timestamp is a number of seconds",
    also="`hash_ids` of 16 tokens, conversations as trees, `type` as class",
    units=("s", "ms", "us", "ns"),
)
