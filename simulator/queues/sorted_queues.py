"""Queues that orders are made of: sorted by a key, by class, and sorted when a plan looks at them."""

from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterator, Sequence
from heapq import heapify, heappop, heappush
from typing import Annotated, Any, NamedTuple

from annotated_types import Ge, Le, doc
from sortedcontainers import SortedDict

from simulator.queues.order import Meter
from simulator.request import RequestView
from simulator.request_state import RequestState

# A queue sorted by a key of its requests that does not change while they wait.

Key = Callable[[RequestView], tuple[Any, ...]]


class ByKey:
    """The smallest key first; keys must differ, so they end with the row. A preempted request returns to its place."""

    __slots__ = ("_key", "_queue")

    timeless = True
    meter: Meter | None = None

    def __init__(self, key: Key) -> None:
        self._key = key
        self._queue: SortedDict[tuple[Any, ...], RequestState] = SortedDict()

    def __len__(self) -> int:
        return len(self._queue)

    def __iter__(self) -> Iterator[RequestState]:
        return iter(self._queue.values())

    @property
    def head(self) -> RequestState:
        return self._queue.peekitem(0)[1]

    def at(self, now_s: float) -> None:
        pass

    def push(self, request: RequestState) -> None:
        self._queue[self._key(request)] = request

    put_back = push

    def remove(self, request: RequestState) -> None:
        del self._queue[self._key(request)]

    drop = remove


# Waiting requests by class, in order of arrival within each; weights of classes and prices of tokens.

Rank = Callable[[RequestState], float]  # the smaller comes first
ClassWeights = Annotated[
    dict[str, Annotated[float, Ge(1e-6), Le(1e6)]] | None,
    doc("weight of each class by name; 1 for a class that is not named"),
]
PromptPrice = Annotated[float, Ge(0), Le(1e9), doc("service that one prompt token counts as")]
OutputPrice = Annotated[float, Ge(0), Le(1e9), doc("service that one output token counts as")]


class Classes:
    """A queue for each class; the order among their heads is the caller's."""

    __slots__ = ("_queues", "_size")

    def __init__(self) -> None:
        self._queues: defaultdict[str, SortedDict[int, RequestState]] = defaultdict(SortedDict)
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def __contains__(self, name: str) -> bool:
        return bool(self._queues.get(name))

    def names(self) -> list[str]:
        return [name for name, queue in self._queues.items() if queue]

    def add(self, request: RequestState) -> None:
        self._queues[request.class_name][request.row] = request
        self._size += 1

    def remove(self, request: RequestState) -> None:
        del self._queues[request.class_name][request.row]
        self._size -= 1

    def first(self, rank: Rank) -> RequestState:
        """Among the heads of the classes the one of the smallest rank, then of the earliest arrival."""
        heads = [queue.peekitem(0)[1] for queue in self._queues.values() if queue]
        return min(heads, key=lambda head: (rank(head), head.row))

    def in_order(self, rank: Rank) -> Iterator[RequestState]:
        """All requests, each time the head of the smallest rank; a head is ranked when it becomes one."""
        rests = [iter(queue.values()) for queue in self._queues.values() if queue]
        heads = [(rank(head), head.row, head, rest) for rest in rests if (head := next(rest))]
        heapify(heads)
        while heads:
            _, _, head, rest = heappop(heads)
            yield head
            following = next(rest, None)
            if following is not None:
                heappush(heads, (rank(following), following.row, following, rest))


def check_prices(w_p: float, w_q: float) -> None:
    """Raise ValueError where no token counts for any service."""
    if w_p + w_q == 0:
        raise ValueError("one of w_p and w_q must be above 0")


# Queues that are sorted when a plan looks at them, and stay as they were sorted: those of SGLang.


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
