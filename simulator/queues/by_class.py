"""Waiting requests by class, in order of arrival within each; weights of classes and prices of tokens."""

from collections import defaultdict
from collections.abc import Callable, Iterator
from heapq import heapify, heappop, heappush
from typing import Annotated

from annotated_types import Ge, Le, doc
from sortedcontainers import SortedDict

from simulator.request_state import RequestState

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
