"""Users in a closed loop as a source: each issues its next request when its last one was answered."""

from collections.abc import Iterator

import numpy as np

from simulator.traffic.script import Following, places_in_class
from simulator.traffic.source import Call
from simulator.workload import ClosedLoop, Workload

_LEAST = 256  # chains drawn at once


class Users:
    """The users of a `ClosedLoop`: as they take from one pool, R requests are the same R whatever the policy.

    The user whose chain ends first takes the next one of the pool, with the think time that belongs to it: which user
    that is makes no difference, and nothing is drawn per user.
    """

    def __init__(self, loop: ClosedLoop) -> None:
        self._loop = loop
        self._taken = 0  # chains
        self._numbers: list[int] | None = None
        self._following: Following | None = None
        self._over: set[int] = set()  # chains with joins that ended before their last request, by their first row
        self._grow(max(_LEAST, 2 * loop.concurrency) if loop.requests is None else loop.requests)

    @property
    def rows(self) -> Workload:
        return self._rows

    def number(self, row: int) -> int:
        if self._numbers is None:
            self._numbers = places_in_class(self._rows.class_index).tolist()
        return self._numbers[row]

    def first(self) -> Iterator[Call]:
        """One chain a user, in order of arrival."""
        calls = [call for _ in range(self._loop.concurrency) for call in self._next(0.0)]
        yield from sorted(calls)

    def answered(self, row: int, at_s: float) -> list[Call]:
        assert self._following is not None
        if row not in self._following.followers:
            return self._next(at_s)
        return self._following.calls(row, at_s)

    def failed(self, row: int, at_s: float) -> list[Call]:
        if self._rows.also_after is not None:  # other parts of the chain go on, and may fail too
            assert self._rows.after_row is not None
            first = row
            while (before := self._rows.after_row.item(first)) >= 0:
                first = before
            if first in self._over:
                return []
            self._over.add(first)
        return self._next(at_s)

    def _next(self, at_s: float) -> list[Call]:
        """The first request of the next chain, by a user that is free at `at_s`; none where the pool is empty."""
        if self._taken == len(self._firsts):
            if self._loop.requests is not None:
                return []
            self._grow(2 * self._taken)
        row = self._firsts[self._taken]
        self._taken += 1
        return [Call(at_s + self._delay_s.item(row), row)]

    def _grow(self, chains: int) -> None:
        self._rows = self._loop.draw(chains)
        self._numbers = None
        after, delay_s = self._rows.after_row, self._rows.delay_s
        assert after is not None, "a closed loop's chains say what follows what"
        assert delay_s is not None
        self._delay_s = delay_s
        end = self._loop.requests
        self._firsts: list[int] = np.flatnonzero(after[:end] < 0).tolist()
        if self._following is None:
            self._following = Following(self._rows, end)
        else:
            self._following.take(self._rows, end)
