"""Requests that are known before they arrive, in order of arrival."""

from collections import deque
from collections.abc import Iterable
from math import inf

from simulator.request import Request


class Arrivals:
    """Requests to come: first those of an iterable, then those that were added, each group in order of arrival.

    `due_s` is the time of the next arrival, infinity without one.
    """

    __slots__ = ("_added", "_coming", "_requests", "due_s")

    def __init__(self, requests: Iterable[Request] = ()) -> None:
        self._requests = iter(requests)
        self._added: deque[Request] = deque()
        self._coming = next(self._requests, None)
        self.due_s = inf if self._coming is None else self._coming.arrival_s

    def add(self, request: Request) -> None:
        """Add a request that arrives after all others."""
        if self._coming is None:
            self._coming = request
            self.due_s = request.arrival_s
        else:
            self._added.append(request)

    def take(self) -> Request:
        """Take out the next request."""
        request = self._coming
        assert request is not None
        coming = next(self._requests, None)
        if coming is None and self._added:
            coming = self._added.popleft()
        self._coming = coming
        self.due_s = inf if coming is None else coming.arrival_s
        return request
