"""Waiting queues: an order, and constant or logarithmic work at every end of it."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Protocol

from sortedcontainers import SortedDict

from simulator.errors import InputError
from simulator.live import LiveRequest


class WaitingQueue(Protocol):
    """Requests that wait, in the order in which they are to be looked at."""

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[LiveRequest]: ...

    @property
    def head(self) -> LiveRequest: ...

    def push(self, request: LiveRequest) -> None:
        """A request that has just arrived."""

    def put_back(self, request: LiveRequest) -> None:
        """A request that was preempted."""

    def remove(self, request: LiveRequest) -> None: ...


class Fcfs(OrderedDict[LiveRequest, None]):
    """First come, first served. A preempted request goes to the front, as in vLLM's deque."""

    @property
    def head(self) -> LiveRequest:
        return next(iter(self))

    def push(self, request: LiveRequest) -> None:
        self[request] = None

    def put_back(self, request: LiveRequest) -> None:
        self[request] = None
        self.move_to_end(request, last=False)

    def remove(self, request: LiveRequest) -> None:
        del self[request]


class ByPriority:
    """Smaller priority first, then arrival. A preempted request returns to its place."""

    __slots__ = ("_queue",)

    def __init__(self) -> None:
        self._queue: SortedDict[tuple[int, int], LiveRequest] = SortedDict()

    def __len__(self) -> int:
        return len(self._queue)

    def __iter__(self) -> Iterator[LiveRequest]:
        return iter(self._queue.values())

    @property
    def head(self) -> LiveRequest:
        return self._queue.peekitem(0)[1]

    def push(self, request: LiveRequest) -> None:
        self._queue[request.priority, request.row] = request

    put_back = push

    def remove(self, request: LiveRequest) -> None:
        del self._queue[request.priority, request.row]


QUEUES: dict[str, Callable[[], WaitingQueue]] = {"fcfs": Fcfs, "priority": ByPriority}


def make_queue(order: str) -> WaitingQueue:
    """An empty queue of the order named."""
    if order not in QUEUES:
        raise InputError(f"unknown queue order {order!r}", hint=f"known orders: {', '.join(QUEUES)}")
    return QUEUES[order]()
