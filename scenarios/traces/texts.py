"""Texts in the place of token counts: chat messages and prompts, put together to be counted."""

from __future__ import annotations

from typing import Any

from scenarios.traces.rows import RowError


def messages_text(messages: object, name: str) -> str:
    """All text of a list of chat messages: their contents, or the text parts of these; roles are not counted."""
    if type(messages) is not list or not messages:
        raise RowError(f"{name} is not a list of messages", None if messages is None else type(messages).__name__)
    parts: list[str] = []
    for message in messages:
        if type(message) is not dict:
            raise RowError(f"{name} is not a list of messages", type(message).__name__)
        parts += _content(message.get("content"), name)
    return "".join(parts)


def _content(content: Any, name: str) -> list[str]:
    if content is None:
        return []
    if type(content) is str:
        return [content]
    if type(content) is list:
        return [part["text"] for part in content if type(part) is dict and type(part.get("text")) is str]
    raise RowError(f"{name} has a content that is neither text nor a list of parts")
