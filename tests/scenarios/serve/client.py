"""A client of the server's ASGI application, in process, on an event loop whose time is virtual."""

import asyncio
import json
import selectors
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from scenarios.runs.result import Result
from scenarios.schema.loader import load
from scenarios.serve.server import Serving

_T = TypeVar("_T")


class _Selector(selectors.SelectSelector):
    """Never waits: the loop's time jumps to where a wait would have ended."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 1000.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise RuntimeError("the test waits for ever")
        self.now_s += max(0.0, timeout)
        return []


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop without real time: equal programs take equal steps."""

    def __init__(self) -> None:
        self._virtual = _Selector()
        super().__init__(self._virtual)

    def time(self) -> float:
        return self._virtual.now_s


@dataclass
class Answer:
    """What came back, and when (in the loop's seconds since the call)."""

    status: int
    headers: dict[str, str]
    body: bytes
    times: list[float] = field(default_factory=list)

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def events(self) -> list[Any]:
        """The events of a stream; the last is "[DONE]"."""
        found = [line.removeprefix("data: ") for line in self.body.decode().split("\n\n") if line]
        return [json.loads(each) if each.startswith("{") else each for each in found]


class Client:
    """Calls the application; `leave_after_s` goes away so long after the call."""

    def __init__(self, serving: Serving) -> None:
        self.serving = serving

    async def call(
        self,
        path: str,
        body: Any = None,
        *,
        method: str | None = None,
        headers: Mapping[str, str] | None = None,
        leave_after_s: float | None = None,
    ) -> Answer:
        loop = asyncio.get_running_loop()
        raw = b"" if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
        begun_s = loop.time()
        answer = Answer(0, {}, b"")
        sent = False
        gone = asyncio.Event()
        if leave_after_s is not None:
            loop.call_later(leave_after_s, gone.set)

        async def receive() -> dict[str, Any]:
            nonlocal sent
            if not sent:
                sent = True
                return {"type": "http.request", "body": raw, "more_body": False}
            await gone.wait()
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            if message["type"] == "http.response.start":
                answer.status = message["status"]
                answer.headers = {key.decode().lower(): value.decode() for key, value in message["headers"]}
            elif message.get("body"):
                answer.body += message["body"]
                answer.times.append(loop.time() - begun_s)

        scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": method or ("GET" if body is None else "POST"),
            "path": path,
            "raw_path": path.encode(),
            "query_string": b"",
            "headers": [(key.lower().encode(), value.encode()) for key, value in (headers or {}).items()],
            "server": ("test", 80),
            "client": ("test", 1),
            "scheme": "http",
        }
        await self.serving.app(scope, receive, send)
        return answer


def served(
    folder: Path,
    talk: Callable[[Client], Coroutine[Any, Any, _T]],
    *overrides: str,
    scenario: str = "quickstart",
    **options: Any,
) -> tuple[_T, Serving, Result | None]:
    """Talk to a server of the scenario, and let it write its run folder. Returns what `talk` does, and the result."""
    serving = Serving(load(scenario, list(overrides)), log_decisions=True, **options)

    async def all_of_it() -> _T:
        found = await talk(Client(serving))
        while serving.engine.live.unfinished:
            await asyncio.sleep(0.1)
        return found

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        found = runner.run(all_of_it())
    if serving.num_requests:
        folder.mkdir()
        return found, serving, serving.finish(folder, folder)
    return found, serving, None
