"""Waiting requests by class, in order of arrival within each; and what classes are worth."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from heapq import heapify, heappop, heappush

from sortedcontainers import SortedDict

from simulator.request_state import RequestState

DataParallelRank = Callable[[RequestState], float]


class Classes:
    """A queue for each class; who comes first among their heads is for an order to say."""

    __slots__ = ("_queues", "_size")

    def __init__(self) -> None:
        self._queues: dict[str, SortedDict[int, RequestState]] = {}
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def __contains__(self, name: str) -> bool:
        """Whether somebody of this class waits."""
        return bool(self._queues.get(name))

    def names(self) -> list[str]:
        """The classes of those who wait."""
        return [name for name, queue in self._queues.items() if queue]

    def add(self, request: RequestState) -> None:
        """`request` waits."""
        queue = self._queues.get(request.class_name)
        if queue is None:
            queue = self._queues[request.class_name] = SortedDict()
        queue[request.row] = request
        self._size += 1

    def remove(self, request: RequestState) -> None:
        """`request` waits no longer."""
        del self._queues[request.class_name][request.row]
        self._size -= 1

    def first(self, rank: DataParallelRank) -> RequestState:
        """Among the heads of the classes the one of the smallest rank, then of the earliest arrival."""
        heads = [queue.peekitem(0)[1] for queue in self._queues.values() if queue]
        return min(heads, key=lambda head: (rank(head), head.row))

    def in_order(self, rank: DataParallelRank) -> Iterator[RequestState]:
        """Everybody, each time the head of the smallest rank; `rank` is asked of a head when it becomes one."""
        heads = []
        for queue in self._queues.values():
            if queue:
                rest = iter(queue.values())
                head = next(rest)
                heads.append((rank(head), head.row, head, rest))
        heapify(heads)
        while heads:
            _, _, head, rest = heappop(heads)
            yield head
            following = next(rest, None)
            if following is not None:
                heappush(heads, (rank(following), following.row, following, rest))


def checked_weights(weights: Mapping[str, float] | None) -> dict[str, float]:
    """Weights of classes, a class that is not named having 1. Raises ValueError unless all are above 0."""
    for name, weight in (weights or {}).items():
        if not 0 < weight < float("inf"):
            raise ValueError(f"the weight of class {name!r} must be above 0, not {weight}")
    return dict(weights or {})


def check_prices(w_p: float, w_q: float) -> None:
    """Raises ValueError unless tokens cost something."""
    if not (w_p >= 0 and w_q >= 0 and 0 < w_p + w_q < float("inf")):
        raise ValueError(f"w_p and w_q must be 0 or more, and one of them above 0, not {w_p} and {w_q}")
