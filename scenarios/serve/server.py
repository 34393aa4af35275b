"""The server: a socket, signals, and the way from a scenario to a run folder."""

import asyncio
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import uvicorn

from scenarios.runs.result import Result
from scenarios.schema.scenario import Scenario
from scenarios.serve.app import Service, make_app
from scenarios.serve.engine import Engine
from scenarios.serve.prometheus import Meters
from scenarios.serve.session import Session
from scenarios.serve.submission import Reader
from scenarios.servers import server_of
from simulator.errors import InputError

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
