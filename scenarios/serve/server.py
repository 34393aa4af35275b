"""The server: its paths, its replies, a socket, signals, and the way from a scenario to a run folder."""

from __future__ import annotations

import asyncio
import hmac
import json
import signal
import sys
import time
import traceback
from asyncio import CancelledError, create_task
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from scenarios.runs.result import Result
from scenarios.schema.scenario import Scenario
from scenarios.serve.engine import Engine, Session, Ticket
from scenarios.serve.prometheus import Meters
from scenarios.serve.submission import (
    ChatCall,
    Choice,
    CompletionCall,
    DetokenizeCall,
    Reader,
    RefusedError,
    Submission,
    TokenizeCall,
    parsed,
)
from scenarios.servers import server_of
from scenarios.version import __version__
from simulator.errors import InputError
from simulator.results.records import Cause

# Replies: a whole answer, or a stream of server-sent events, in OpenAI's shapes as vLLM fills them.

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


# The paths of the server.

MOST_BYTES = 64 * 2**20  # of a body

_Handler = Callable[[Request], Awaitable[ASGIApp]]


class Service:
    """The server's answers. `overload` is the status of a call that finds the queue full."""

    def __init__(self, engine: Engine, reader: Reader, meters: Meters, *, overload: int = 503) -> None:
        self._engine = engine
        self._reader = reader
        self._meters = meters
        self._overload = overload
        self._created = int(time.time())
        self.draining = False

    # Completions

    async def complete(self, request: Request) -> ASGIApp:
        """/v1/completions."""
        return self._submit(parsed(CompletionCall, await _body(request)), request)

    async def chat(self, request: Request) -> ASGIApp:
        """/v1/chat/completions."""
        return self._submit(parsed(ChatCall, await _body(request)), request)

    def _submit(self, call: CompletionCall | ChatCall, request: Request) -> ASGIApp:
        if self.draining or self._engine.failure is not None:
            raise RefusedError(503, "The server is shutting down.")
        first = self._engine.live.num_requests
        submission = self._reader.read(call, first, request.headers)
        self._meters.reasons |= {row: choice.finish_reason for row, choice in enumerate(submission.choices, first)}
        self._meters.asked([each.max_tokens for each in submission.requests], call.n)
        ticket = self._engine.submit(submission.requests)
        shape = Shape.of(call, submission, call.model or self._reader.model_name)
        kind = StreamReply if call.stream else WholeReply
        return kind(self._engine, ticket, shape, self._refusal)

    def _refusal(self, ticket: Ticket) -> RefusedError:
        """Return the reason why a ticket gets no answer."""
        if ticket.rejected is Cause.TOO_LARGE:
            return RefusedError(400, "The KV cache can never hold this request.", "max_tokens")
        if ticket.rejected is not None:
            self._meters.queue_was_full(ticket.rejected)
            what = "The engine is currently busy and cannot accept new requests."
            return RefusedError(self._overload, f"{what} Please try again later or on a different instance.")
        if self._engine.failure is not None:
            return RefusedError(500, f"the simulation failed: {self._engine.failure}")
        return RefusedError(503, "The server is shutting down.")

    # The rest

    async def models(self, request: Request) -> ASGIApp:
        """/v1/models."""
        names = (self._reader.model_name, *self._reader.adapters)
        return JSONResponse({"object": "list", "data": [self._card(name) for name in names]})

    async def model(self, request: Request) -> ASGIApp:
        """/v1/models/NAME."""
        name = request.path_params["name"]
        self._reader.check_model(name)
        return JSONResponse(self._card(name))

    def _card(self, name: str) -> dict[str, Any]:
        """Return the card of the model, or of an adapter, whose parent is the model."""
        base, created = self._reader.model_name, self._created
        parent = None if name == base else base
        card = {"id": name, "object": "model", "created": created, "owned_by": "batchlab", "root": name}
        return card | {"parent": parent, "max_model_len": self._reader.max_model_len}

    async def tokenize(self, request: Request) -> ASGIApp:
        """/tokenize."""
        call = parsed(TokenizeCall, await _body(request))
        self._reader.check_model(call.model)
        ids = self._reader.tokenizer.encode(call.text)
        return JSONResponse({"count": len(ids), "max_model_len": self._reader.max_model_len, "tokens": ids})

    async def detokenize(self, request: Request) -> ASGIApp:
        """/detokenize."""
        call = parsed(DetokenizeCall, await _body(request))
        self._reader.check_model(call.model)
        return JSONResponse({"prompt": self._reader.tokenizer.decode(call.tokens)})

    async def health(self, request: Request) -> ASGIApp:
        """/health: 503 while the server drains."""
        return Response(status_code=503 if self.draining or self._engine.failure is not None else 200)

    async def version(self, request: Request) -> ASGIApp:
        """/version."""
        return JSONResponse({"version": __version__})

    async def metrics(self, request: Request) -> ASGIApp:
        """/metrics."""
        return Response(self._meters.text(), media_type=None, headers={"content-type": self._meters.content_type})


def make_app(service: Service, *, api_key: str | None = None) -> ASGIApp:
    """Make the server's ASGI application. With a key, all of /v1 asks for it, as vLLM does."""
    paths: dict[str, tuple[str, _Handler]] = {
        "/v1/completions": ("POST", service.complete),
        "/v1/chat/completions": ("POST", service.chat),
        "/v1/models": ("GET", service.models),
        "/v1/models/{name:path}": ("GET", service.model),
        "/tokenize": ("POST", service.tokenize),
        "/detokenize": ("POST", service.detokenize),
        "/health": ("GET", service.health),
        "/version": ("GET", service.version),
        "/metrics": ("GET", service.metrics),
    }
    routes = [Route(path, _answering(handler), methods=[method]) for path, (method, handler) in paths.items()]
    app = Starlette(routes=routes, exception_handlers={HTTPException: _http_error})
    return app if api_key is None else _Guarded(app, api_key)


def _answering(handler: _Handler) -> _Handler:
    """Turn the refusals and defects of a handler into errors in OpenAI's shape."""

    async def answer(request: Request) -> ASGIApp:
        try:
            return await handler(request)
        except RefusedError as refusal:
            return refusal.response()
        except ClientDisconnect:
            return Response(status_code=499)  # which no client reads
        except Exception as error:
            traceback.print_exc(file=sys.stderr)
            return RefusedError(500, f"this is a defect of batchlab: {type(error).__name__}: {error}").response()

    return answer


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    told = "Not Found" if error.status_code == 404 else error.detail
    response = RefusedError(error.status_code, f"{told}: {request.method} {request.url.path}").response()
    response.headers.update(error.headers or {})
    return response


async def _body(request: Request) -> bytes:
    """Read the body. Raises RefusedError for one that is larger than any call."""
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > MOST_BYTES:
            raise RefusedError(413, f"the body has more than {MOST_BYTES:,} bytes")
    return bytes(body)


class _Guarded:
    """The application behind an API key."""

    def __init__(self, app: ASGIApp, api_key: str) -> None:
        self._app = app
        self._expected = f"Bearer {api_key}".encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        app = self._app
        if scope["type"] == "http" and scope["path"].startswith("/v1") and scope["method"] != "OPTIONS":
            given = dict(scope["headers"]).get(b"authorization", b"")
            if not hmac.compare_digest(given, self._expected):
                app = RefusedError(401, "Unauthorized: give the API key as `Authorization: Bearer KEY`.").response()
        await app(scope, receive, send)


_LAG_EVERY_S = 0.02
_DRAINED_EVERY_S = 0.05
_KEEP_ALIVE_S = 60


@dataclass(frozen=True, slots=True)
class Address:
    """The address to listen at; port 0 is any that is free."""

    host: str = "127.0.0.1"
    port: int = 8000


class Serving:
    """A scenario that is served.

    `served_name` is the model's name for clients: unless given the scenario's name for it or, of a model with its own
    dimensions, the name of the scenario.
    """

    def __init__(
        self,
        scenario: Scenario,
        *,
        time_scale: float = 1.0,
        api_key: str | None = None,
        served_name: str | None = None,
        log_decisions: bool = False,
    ) -> None:
        self._session = Session(scenario, log_decisions=log_decisions)
        self.model_name = served_name or (scenario.model if isinstance(scenario.model, str) else scenario.name)
        self._reader = Reader(scenario, self.model_name)
        drafted = scenario.engine.speculative_config
        drafts = 0 if drafted is None else drafted.num_speculative_tokens
        self.meters = Meters(self.model_name, self._reader.max_model_len, drafts)
        self.engine = Engine(self._session, self.meters, time_scale=time_scale)
        status = server_of(scenario.engine.policy).overload_status
        self.service = Service(self.engine, self._reader, self.meters, overload=status)
        self.app = make_app(self.service, api_key=api_key)

    def listen(self, address: Address, ready: Callable[[str], None]) -> None:
        """Serve until SIGINT or SIGTERM, and then until all open calls have their answers; a second signal ends these.

        `ready` gets the URL. Raises InputError for an address that cannot be had, and what the simulation raises.
        """
        asyncio.run(self._listen(address, ready))
        if self.engine.failure is not None:
            raise self.engine.failure

    async def _listen(self, address: Address, ready: Callable[[str], None]) -> None:
        config = uvicorn.Config(
            self.app, address.host, address.port, log_level="warning", access_log=False, lifespan="off",
            timeout_keep_alive=_KEEP_ALIVE_S, server_header=False,
        )  # fmt: skip
        server = _Uvicorn(config)
        try:
            socket = config.bind_socket()
        except SystemExit:
            what = f"cannot listen at {address.host}:{address.port}"
            raise InputError(what, hint="another --port, or --port 0 for any that is free") from None
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._stop, server)
        host = f"[{address.host}]" if ":" in address.host else address.host
        url = f"http://{host}:{socket.getsockname()[1]}"
        beside = [
            self._tell(server, ready, url), self._measure_lag(), self._end_on_failure(server),
            self._end_when_drained(server),
        ]  # fmt: skip
        tasks = [asyncio.create_task(each) for each in beside]
        try:
            await server.serve(sockets=[socket])
        finally:
            for number in (signal.SIGINT, signal.SIGTERM):
                loop.remove_signal_handler(number)
            for task in tasks:
                task.cancel()
            socket.close()

    def _stop(self, server: uvicorn.Server) -> None:
        """Drain at the first signal, end at the second."""
        if self.service.draining:
            self.engine.leave_all()
            server.force_exit = server.should_exit = True
        self.service.draining = True

    async def _end_when_drained(self, server: uvicorn.Server) -> None:
        """Let the socket listen as long as answers are under way: whoever asks for /health then gets 503."""
        while not self.service.draining or self.engine.has_calls:
            await asyncio.sleep(_DRAINED_EVERY_S)
        server.should_exit = True

    async def _tell(self, server: uvicorn.Server, ready: Callable[[str], None], url: str) -> None:
        """Report the URL as soon as the server listens."""
        while not server.started:
            await asyncio.sleep(0.01)
        ready(url)

    async def _measure_lag(self) -> None:
        """Ask for a timer again and again, and note how late it comes."""
        loop = asyncio.get_running_loop()
        while True:
            due_s = loop.time() + _LAG_EVERY_S
            await asyncio.sleep(_LAG_EVERY_S)
            self.meters.lagged(loop.time() - due_s)

    async def _end_on_failure(self, server: uvicorn.Server) -> None:
        while self.engine.failure is None:
            await asyncio.sleep(0.1)
        self.service.draining = server.should_exit = True

    @property
    def num_requests(self) -> int:
        """The requests so far."""
        return self.engine.live.num_requests

    def finish(self, folder: Path, target: Path) -> Result:
        return self._session.finish(self.engine.live, folder, target)


class _Uvicorn(uvicorn.Server):  # type: ignore[misc] # untyped: an extra is not looked into
    """uvicorn without signal handlers of its own, which would raise the signal again at the end."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield
