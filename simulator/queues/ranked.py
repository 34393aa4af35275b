"""Queues that are sorted when a plan looks at them, and stay as they were sorted: those of SGLang."""

from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from simulator.request_state import RequestState


class Prefixes(NamedTuple):
    """Waiting requests in the prefix cache; a replica with a cache gives this to its queue.

    `hit_tokens(request)`: leading tokens of prompt and answer that are cached. `leading(request, num_tokens)`: a key of
    its first `num_tokens` tokens, equal for equal tokens; None if these are unknown, or it has fewer.
    `by_subtree(waiting)`: depth first through the radix tree, where most of the waiting end first.

    They are functions because a policy can reach the queue, and must not find the answers of the requests there.
    """

    hit_tokens: Callable[[RequestState], int]
    leading: Callable[[RequestState, int], bytes | None]
    by_subtree: Callable[[Sequence[RequestState]], list[RequestState]]


class Ranked:
    """A queue whose order is that of its last sorting, with later comers behind; a preempted request comes anew.

    From `at` on it is iterated as it would be sorted now; `settle` then sorts it for good, or forgets that. `before` is
    the order that `settle` found, where sorting looks prefixes up (`reads_cache`); where it does not, the order stays.
    """

    timeless = False
    meter = None
    reads_cache = False

    def __init__(self) -> None:
        self.prefixes: Prefixes | None = None
        self.before: Sequence[RequestState] = ()
        self._queue: OrderedDict[RequestState, None] = OrderedDict()
        self._ranked: list[RequestState] | None = None
        self._is_due = True

    def rank(self, waiting: list[RequestState]) -> list[RequestState]:
        """These requests in order."""
        raise NotImplementedError

    def __len__(self) -> int:
        return len(self._queue)

    def __iter__(self) -> Iterator[RequestState]:
        if self._is_due and self._ranked is None:
            self._ranked = self.rank(list(self._queue))
        return iter(self._queue if self._ranked is None else self._ranked)

    @property
    def head(self) -> RequestState:
        return next(iter(self))

    def at(self, now_s: float) -> None:
        self._is_due = self.reads_cache
        self._ranked = None

    def settle(self, *, keep: bool) -> None:
        """The plan is made: keep the order in which it saw the queue, or not."""
        if keep and self._is_due:
            self.before = list(self._queue)
            self._queue = OrderedDict.fromkeys(self)
        self._is_due = False
        self._ranked = None

    def push(self, request: RequestState) -> None:
        self._queue[request] = None
        self._ranked = None

    def put_back(self, request: RequestState) -> None:
        self.push(request)

    def remove(self, request: RequestState) -> None:
        del self._queue[request]
        if self._ranked is not None:
            self._ranked.remove(request)

    def drop(self, request: RequestState) -> None:
        self.remove(request)
