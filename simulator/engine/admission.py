"""The load that a replica shows to routers, and the caps on a server's queue."""

from collections.abc import Callable, Collection, Mapping, Sized
from dataclasses import dataclass

from simulator.engine.state import ReplicaState
from simulator.request import ArrivingRequest, Request
from simulator.request_state import RequestState
from simulator.results.records import Cause

# A replica as routers see it: an object that does not lead to the length of any answer.


class ReplicaLoad:
    """A replica's load: what a router chooses by. `group` is the name of its group in the fleet.

    `max_num_seqs` are the slots of its batch, `num_blocks` its usable KV blocks, `max_loras` its slots for adapters.
    """

    __slots__ = (
        "_cached_tokens", "_loras", "_running", "_used_blocks", "_waiting", "expected", "group", "index", "max_loras",
        "max_num_seqs", "num_blocks",
    )  # fmt: skip

    def __init__(
        self, index: int, group: str, state: ReplicaState, cached_tokens: Callable[[ArrivingRequest], int]
    ) -> None:
        self.index = index
        self.group = group
        self.max_num_seqs = state.policy.max_num_seqs
        self.num_blocks = state.blocks.num_blocks
        adapters = state.adapters
        self.max_loras = 0 if adapters is None else adapters.max_loras
        self._loras: Mapping[str, int] = {} if adapters is None else adapters.unfinished
        self._waiting: Sized = state.waiting
        self._running: Sized = state.running
        self._cached_tokens = cached_tokens
        self.expected = 0  # requests that are still being prefilled for it elsewhere, or on their way

    def count_blocks(self, used_blocks: Callable[[], int]) -> None:
        """Let `used_blocks` say how many blocks are in use."""
        self._used_blocks = used_blocks

    def know_cached(self, cached_tokens: Callable[[ArrivingRequest], int]) -> None:
        """Let `cached_tokens` say how much of a prompt is cached."""
        self._cached_tokens = cached_tokens

    @property
    def num_waiting(self) -> int:
        """Requests waiting, those included that are still with another replica."""
        return len(self._waiting) + self.expected

    @property
    def num_running(self) -> int:
        return len(self._running)

    @property
    def num_unfinished(self) -> int:
        """Requests waiting or running."""
        return len(self._waiting) + len(self._running) + self.expected

    @property
    def loras(self) -> Collection[str]:
        """The adapters of the requests waiting or running, as vLLM's metric of them tells it."""
        return self._loras

    @property
    def used_blocks(self) -> int:
        """KV blocks in use; cached blocks that no request uses count as free."""
        return self._used_blocks()

    @property
    def kv_utilization(self) -> float:
        """Used / usable KV blocks."""
        return self.used_blocks / self.num_blocks

    def cached_tokens(self, request: ArrivingRequest) -> int:
        """Leading tokens of the prompt that the replica's prefix cache holds now; 0 without a prefix cache.

        For routers that say `reads_caches` only: otherwise blocks that running requests fill come to be known late.
        """
        return self._cached_tokens(request)


# vLLM's caps on what a server takes in (0.33: `AsyncLLM.check_admission` in v1/engine/async_llm.py).
#
# Its API process tests them before the engine sees a request, by its own counts. A prompt counts whole until the
# request has its first token: neither its chunks nor hits of the prefix cache make it less, and a preemption does
# not bring it back. An abort counts from the moment when it is sent. A rejected client gets HTTP status 503.


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
