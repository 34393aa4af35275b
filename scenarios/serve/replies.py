"""Replies: a whole answer, or a stream of server-sent events, in OpenAI's shapes as vLLM fills them."""

from __future__ import annotations

import json
import time
from asyncio import CancelledError, create_task
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from starlette.types import Receive, Scope, Send

from scenarios.serve.calls import ChatCall, CompletionCall, RefusedError
from scenarios.serve.engine import Engine, Ticket
from scenarios.serve.submission import Choice, Submission

_Json = dict[str, Any]
_DONE = b"data: [DONE]\n\n"


@dataclass(frozen=True, slots=True)
class Shape:
    """The shape of an answer: a completion of a text, or of a chat."""

    submission: Submission
    model: str
    created: int
    is_chat: bool
    wants_usage: bool
    usage_always: bool
    chunk_head: str  # of each event: made once, as hundreds of streams may have one at a time

    @classmethod
    def of(cls, call: CompletionCall | ChatCall, submission: Submission, model: str) -> Shape:
        """Return the shape that a call asks for."""
        options = call.stream_options
        usage = options is not None and options.include_usage
        always = options is not None and options.continuous_usage_stats
        is_chat, created = isinstance(call, ChatCall), int(time.time())
        kind = "chat.completion.chunk" if is_chat else "text_completion"
        head = json.dumps(_head(submission, kind, created, model))
        return cls(submission, model, created, is_chat, usage, always and usage, f"data: {head[:-1]}")

    def usage(self, tokens: list[int]) -> _Json:
        """Count the tokens of prompts and choices; a prompt that several choices share counts once."""
        choices = self.submission.choices
        each = len(choices) // self.submission.prompts
        prompt, completion = sum(choice.prompt_tokens for choice in choices[::each]), sum(tokens)
        return {"prompt_tokens": prompt, "total_tokens": prompt + completion, "completion_tokens": completion}

    def whole(self) -> bytes:
        """Write the whole answer."""
        choices = [self._choice(index, choice) for index, choice in enumerate(self.submission.choices)]
        usage = self.usage([choice.tokens for choice in self.submission.choices])
        kind = "chat.completion" if self.is_chat else "text_completion"
        head = _head(self.submission, kind, self.created, self.model)
        return json.dumps({**head, "choices": choices, "usage": usage}).encode()

    def _choice(self, index: int, choice: Choice) -> _Json:
        text = choice.echo + choice.answer.text(0, choice.tokens)
        said = {"message": {"role": "assistant", "content": text}} if self.is_chat else {"text": text}
        return {"index": index, **said, "logprobs": None, "finish_reason": choice.finish_reason}

    def event(self, index: int, before: int, tokens: int, usage: _Json | None) -> bytes:
        """Write the event that a choice has `tokens` by now, after `before`."""
        choice = self.submission.choices[index]
        text = choice.answer.text(before, tokens)
        found = b""
        said: _Json
        if self.is_chat:
            if before == 0:
                role = {"index": index, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}
                found = self._event([role], None)
            said = {"delta": {"content": text}}
        else:
            said = {"text": choice.echo + text if before == 0 else text}
        reason = choice.finish_reason if tokens == choice.tokens else None
        return found + self._event([{"index": index, **said, "logprobs": None, "finish_reason": reason}], usage)

    def last(self) -> bytes:
        """Write the end of a stream: the usage if the call asks for it, and the mark that it is over."""
        if not self.wants_usage:
            return _DONE
        return self._event([], self.usage([choice.tokens for choice in self.submission.choices])) + _DONE

    def _event(self, choices: list[_Json], usage: _Json | None) -> bytes:
        told = "" if usage is None else f', "usage": {json.dumps(usage)}'
        return f'{self.chunk_head}, "choices": {json.dumps(choices)}{told}}}\n\n'.encode()


class Reply:
    """An ASGI response that waits for the simulation. A client that goes away aborts its requests."""

    def __init__(self, engine: Engine, ticket: Ticket, shape: Shape, refused: Callable[[Ticket], RefusedError]) -> None:
        self._engine = engine
        self._ticket = ticket
        self._shape = shape
        self._refused = refused

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        watcher = create_task(self._watch(receive))
        try:
            await self._answer(scope, receive, send)
        except OSError:
            pass  # the client is gone
        finally:
            if self._ticket.open:
                self._engine.leave(self._ticket)
            watcher.cancel()
            with suppress(CancelledError):
                await watcher

    async def _watch(self, receive: Receive) -> None:
        """Wait for the client to go away."""
        while (await receive())["type"] != "http.disconnect":
            pass
        self._ticket.fail()

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        raise NotImplementedError


class WholeReply(Reply):
    """All answers at once, when the last is there."""

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        while await self._ticket.news():
            pass
        if self._ticket.is_over:
            await self._refused(self._ticket).response()(scope, receive, send)
            return
        await _begin(send, {b"content-type": b"application/json"})
        await send({"type": "http.response.body", "body": self._shape.whole()})


class StreamReply(Reply):
    """Server-sent events: each token as the client is to have it."""

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        ticket, shape = self._ticket, self._shape
        if ticket.is_over:
            await self._refused(ticket).response()(scope, receive, send)
            return
        await _begin(send, {b"content-type": b"text/event-stream; charset=utf-8", b"cache-control": b"no-cache"})
        tokens = [0] * len(ticket.totals)
        while news := await ticket.news():
            events = []
            for choice, now in news:
                before, tokens[choice] = tokens[choice], now
                usage = shape.usage(tokens) if shape.usage_always else None
                events.append(shape.event(choice, before, now, usage))
            await send({"type": "http.response.body", "body": b"".join(events), "more_body": True})
        last = b"data: " + self._refused(ticket).body + b"\n\n" + _DONE if ticket.is_over else shape.last()
        await send({"type": "http.response.body", "body": last})


def _head(submission: Submission, kind: str, created: int, model: str) -> _Json:
    return {"id": submission.name, "object": kind, "created": created, "model": model}


async def _begin(send: Send, headers: dict[bytes, bytes]) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": list(headers.items())})
