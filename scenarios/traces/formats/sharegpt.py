"""ShareGPT's conversations: a JSON array of texts, without times and token counts.

As in vLLM's benchmark, a conversation is one request: its first human turn is the prompt, the answer to it gives the
output length. Conversations without both are set aside. Tokens are estimated from characters.
"""

import re
from typing import Any

from scenarios.traces.format import Head, OpenTrace, TraceFormat, array_items
from scenarios.traces.rows import CHARACTERS_A_TOKEN, Row, RowError, json_object, text_tokens

_ASKS, _ANSWERS = ("human", "user"), ("gpt", "chatgpt", "bing", "bard", "assistant", "model")


def _parse(text: str) -> Row:
    conversations = json_object(text).get("conversations")
    if type(conversations) is not list:
        raise RowError("conversations is not a list")
    turns = [(_text(turn, "from"), _text(turn, "value")) for turn in conversations]
    first = next((place for place, (who, _) in enumerate(turns) if who in _ASKS), None)
    if first is None or first + 1 == len(turns) or turns[first + 1][0] not in _ANSWERS:
        raise RowError("a conversation without a human turn and its answer")
    prompt, answer = turns[first][1], turns[first + 1][1]
    if not prompt or not answer:
        raise RowError("an empty turn")
    return 0.0, text_tokens(prompt), text_tokens(answer), None


def _text(turn: Any, key: str) -> str:
    if type(turn) is not dict or type(turn.get(key)) is not str:
        raise RowError(f"a turn without the text `{key}`")
    return str(turn[key])


def _open(head: Head) -> OpenTrace:
    estimate = f"tokens estimated as characters / {CHARACTERS_A_TOKEN}"
    note = f"the first human turn and its answer of each conversation; {estimate}"
    return OpenTrace(array_items(head.rows), _parse, "run", note=note, timed=False)


FORMAT = TraceFormat(
    name="sharegpt",
    title="ShareGPT conversations (text, no token counts)",
    open=_open,
    begins=re.compile(r'\s*\[.*"conversations"', re.DOTALL),
    times="it has no arrival times",
    also="the first human turn and its answer, estimated",
)
