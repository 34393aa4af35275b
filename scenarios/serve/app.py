"""The paths of the server."""

import hmac
import sys
import time
import traceback
from collections.abc import Awaitable, Callable
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from scenarios.serve.calls import ChatCall, CompletionCall, DetokenizeCall, TokenizeCall, parsed
from scenarios.serve.engine import Engine, Ticket
from scenarios.serve.prometheus import Meters
from scenarios.serve.refusals import RefusedError
from scenarios.serve.replies import Shape, StreamReply, WholeReply
from scenarios.serve.submission import Reader
from scenarios.version import __version__
from simulator.results.records import Cause

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
