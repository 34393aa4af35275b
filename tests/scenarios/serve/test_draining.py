"""A server on a real socket that drains after a signal: open calls are answered, and the rest gets 503."""

import asyncio
import json
import os
import signal
from collections.abc import Callable, Coroutine

import pytest

pytest.importorskip("starlette", reason="needs the extra `serve`")

from scenarios.schema.loader import load
from scenarios.serve.server import Address, Serving

_LINEAR = "cost={kind: linear, base_s: 0.01, per_token_s: 0, per_context_token_s: 0}"


async def ask(port: int, path: str, body: object = None) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Send one call on a connection of its own."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    text = b"" if body is None else json.dumps(body).encode()
    method = "GET" if body is None else "POST"
    head = f"{method} {path} HTTP/1.1\r\nHost: t\r\nConnection: close\r\nContent-Length: {len(text)}\r\n\r\n"
    writer.write(head.encode() + text)
    return reader, writer


async def status(port: int, path: str, body: object = None) -> int:
    reader, writer = await ask(port, path, body)
    line = await reader.readline()
    writer.close()
    return int(line.split()[1])


def listening(talk: Callable[[int], Coroutine[object, object, None]]) -> None:
    """Serve until `talk`, which gets the port, has ended the server."""
    serving = Serving(load("quickstart", [_LINEAR]))
    talks: list[asyncio.Task[None]] = []

    def ready(url: str) -> None:
        talks.append(asyncio.get_running_loop().create_task(talk(int(url.rpartition(":")[2]))))

    serving.listen(Address(port=0), ready)
    assert talks[0].done()
    talks[0].result()


def test_while_it_drains_health_is_503_and_open_calls_are_answered() -> None:
    async def talk(port: int) -> None:
        assert await status(port, "/health") == 200
        call = {"prompt": "x", "max_tokens": 60, "ignore_eos": True, "stream": True}
        reader, writer = await ask(port, "/v1/completions", call)
        assert b"200" in await reader.readline()
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.sleep(0.15)
        assert await status(port, "/health") == 503
        assert await status(port, "/v1/completions", {"prompt": "y"}) == 503
        assert (await reader.read()).rstrip(b"\r\n0").endswith(b"data: [DONE]")
        writer.close()

    listening(talk)


def test_a_server_without_calls_ends_at_once() -> None:
    async def talk(port: int) -> None:
        os.kill(os.getpid(), signal.SIGTERM)

    listening(talk)


def test_a_second_signal_ends_what_is_under_way() -> None:
    async def talk(port: int) -> None:
        reader, writer = await ask(port, "/v1/completions", {"prompt": "x", "max_tokens": 8000, "ignore_eos": True})
        for _ in range(2):
            await asyncio.sleep(0.1)
            os.kill(os.getpid(), signal.SIGTERM)
        assert b"503" in await reader.readline()
        writer.close()

    listening(talk)
