"""vLLM's caps on what a server takes in (0.33: `AsyncLLM.check_admission` in v1/engine/async_llm.py).

Its API process tests them before the engine sees a request, by its own counts. A prompt counts whole until the request
has its first token: neither its chunks nor hits of the prefix cache make it less, and a preemption does not bring it
back. An abort counts from the moment when it is sent. A rejected client gets HTTP status 503.
"""

from dataclasses import dataclass

from simulator.request import Request
from simulator.request_state import RequestState
from simulator.results.records import Cause


@dataclass(frozen=True, slots=True)
class QueueCaps:
    """The caps of one server, by vLLM's names; None is no cap."""

    max_num_queued_reqs: int | None = None
    max_num_queued_tokens: int | None = None

    def __bool__(self) -> bool:
        """True if there is any cap."""
        return self.max_num_queued_reqs is not None or self.max_num_queued_tokens is not None


NO_CAPS = QueueCaps()


class Admission:
    """A server's counts of its unfinished requests, and of their prompts that have no first token yet."""

    __slots__ = ("_call", "_prefilling", "_unfinished", "_verdict", "caps")

    def __init__(self, caps: QueueCaps) -> None:
        self.caps = caps
        self._call = range(0)
        self._verdict: tuple[Cause, str] | None = None
        self._unfinished: set[int] = set()
        self._prefilling: dict[int, RequestState] = {}  # of these, some may have begun since

    def expect(self, rows: range) -> None:
        """The requests of these rows come next, at one time, as the sequences of one call."""
        self._call = rows

    def refusal_of(self, request: Request) -> tuple[Cause, str] | None:
        """`refusal` for a request that comes now: with the others of its call, before the first of which it is said."""
        if request.row not in self._call:
            return self.refusal(request.arrival_s)
        if request.row == self._call.start:
            self._verdict = self.refusal(request.arrival_s, len(self._call))
        return self._verdict

    def refusal(self, now_s: float, sequences: int = 1) -> tuple[Cause, str] | None:
        """The cause and the words of a rejection of so many sequences that come now; None if they are admitted.

        The prompt that comes does not count, so one of any length enters below the cap.
        """
        most = self.caps.max_num_queued_reqs
        if most is not None and len(self._unfinished) + sequences > most:
            return Cause.QUEUE_FULL, f"{Cause.QUEUE_FULL.value}: max_num_queued_reqs is {most}"
        most = self.caps.max_num_queued_tokens
        if most is not None and self._queued_tokens(now_s) >= most:
            return Cause.TOKENS_FULL, f"{Cause.TOKENS_FULL.value}: max_num_queued_tokens is {most}"
        return None

    def _queued_tokens(self, now_s: float) -> int:
        waiting = {row: live for row, live in self._prefilling.items() if not live.first_token_s < now_s}
        self._prefilling = waiting
        return sum(live.input_tokens for live in waiting.values())

    def add(self, live: RequestState) -> None:
        """A request has been admitted."""
        self._unfinished.add(live.row)
        if self.caps.max_num_queued_tokens is not None:
            self._prefilling[live.row] = live

    def end(self, row: int) -> None:
        """A request has ended, or its abort has been sent; without effect for one that does not count."""
        self._unfinished.discard(row)
        self._prefilling.pop(row, None)
