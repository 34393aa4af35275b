"""A queue sorted by a key of its requests that does not change while they wait."""

from collections.abc import Callable, Iterator
from typing import Any

from sortedcontainers import SortedDict

from simulator.queues.protocol import Meter
from simulator.request import RequestView
from simulator.request_state import RequestState

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
