"""OpenAI's batch requests: JSON Lines with messages and a cap on the answer, without times and token counts.

The cap (`max_tokens`, `max_completion_tokens`, `max_output_tokens`) is no length: how long the answers would be is not
in the file. They are taken to run to their cap, which is the most work that the batch can be. Tokens of prompts are
estimated from their characters. The model is the class.
"""

from typing import Any

from scenarios.traces.format import Head, OpenTrace, Signature, TraceFormat
from scenarios.traces.rows import (
    CHARACTERS_A_TOKEN,
    Row,
    RowError,
    integers,
    json_object,
    messages_text,
    text_tokens,
    tokens,
    word,
)

_CAPS = ("max_completion_tokens", "max_tokens", "max_output_tokens")


def _parse(text: str) -> Row:
    fields = json_object(text)
    body = fields.get("body")
    if type(body) is not dict:
        raise RowError("body is not a JSON object")
    cap = next((body[name] for name in _CAPS if body.get(name) is not None), None)
    if cap is None:
        raise RowError("no cap on the answer (max_tokens): its length is not known")
    outputs = tokens(cap, "max_tokens")
    inputs, ids = _prompt(body)
    extra: dict[str, Any] = {"max_tokens": outputs}
    if ids:
        extra["prompt_token_ids"] = ids
    if fields.get("custom_id") is not None:
        extra["request_id"] = word(fields["custom_id"], "custom_id")
    if body.get("model") is not None:
        extra["class"] = word(body["model"], "model")
    return 0.0, inputs, outputs, extra


def _prompt(body: dict[str, Any]) -> tuple[int, tuple[int, ...]]:
    """Tokens of the prompt, and their ids where they are given."""
    if body.get("messages") is not None:
        return text_tokens(messages_text(body["messages"], "messages")), ()
    prompt = body.get("prompt", body.get("input"))
    if type(prompt) is str:
        return text_tokens(prompt), ()
    if type(prompt) is list and prompt and type(prompt[0]) is int:
        ids = integers(prompt, "prompt")
        return len(ids), ids
    if type(prompt) is list and prompt and type(prompt[0]) is dict:
        return text_tokens(messages_text(prompt, "input")), ()
    raise RowError("the body has neither messages nor one prompt")


def _open(head: Head) -> OpenTrace:
    note = f"prompts as text: tokens estimated as characters / {CHARACTERS_A_TOKEN}; answers have their max_tokens"
    return OpenTrace(head.rows, _parse, "run", note=note, timed=False)


FORMAT = TraceFormat(
    name="openai-batch",
    title="OpenAI batch requests (text, no token counts)",
    open=_open,
    json=(Signature(("custom_id", "method", "url", "body")),),
    times="it has no arrival times",
    also="prompts, estimated; answers run to their `max_tokens`",
)
