"""By priority, but only when told: vLLM v0's queue under its policy `priority`."""

from collections import OrderedDict
from collections.abc import Iterator
from itertools import chain

from sortedcontainers import SortedDict

from simulator.queues.order import OrderKind
from simulator.request_state import RequestState


class InTurn:
    """Arrivals at the end, victims at the front, until `requeue` sorts all by priority and arrival.

    Swapped requests, which a server keeps apart, stay in front as they went.
    """

    __slots__ = ("_front", "_sorted", "_tail")

    timeless = True
    meter = None

    def __init__(self) -> None:
        self._front: OrderedDict[RequestState, None] = OrderedDict()
        self._sorted: SortedDict[tuple[int, int], RequestState] = SortedDict()
        self._tail: OrderedDict[RequestState, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._front) + len(self._sorted) + len(self._tail)

    def __iter__(self) -> Iterator[RequestState]:
        return chain(self._front, self._sorted.values(), self._tail)

    @property
    def head(self) -> RequestState:
        return next(iter(self))

    def at(self, now_s: float) -> None:
        pass

    def push(self, request: RequestState) -> None:
        self._tail[request] = None

    def put_back(self, request: RequestState) -> None:
        self._front[request] = None
        self._front.move_to_end(request, last=False)

    def remove(self, request: RequestState) -> None:
        for part in (self._front, self._tail):
            if request in part:
                del part[request]
                return
        del self._sorted[request.priority, request.row]

    drop = remove

    def requeue(self, first: tuple[RequestState, ...]) -> None:
        """Sort all but `first`, which go to the front in this order."""
        for request in [request for request in (*self._front, *self._tail) if not request.is_swapped]:
            self.remove(request)
            self._sorted[request.priority, request.row] = request
        for request in reversed(first):
            self.remove(request)
            self.put_back(request)


ORDER = OrderKind(InTurn, is_internal=True)
