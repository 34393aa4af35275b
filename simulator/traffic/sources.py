"""Sources of requests whose arrivals depend on answers: scripts, and users in a closed loop."""

from collections.abc import Iterable, Iterator
from typing import NamedTuple, Protocol

import numpy as np

from simulator.workload import ClosedLoop, Ints, Workload

# Where requests come from when arrivals depend on answers.


class Call(NamedTuple):
    """A request that will arrive: `row` is its row in the workload of its source."""

    arrival_s: float
    row: int


class Source(Protocol):
    """A source of requests. Its answers do not depend on the order of calls within one moment."""

    @property
    def rows(self) -> Workload:
        """The source's requests, without their arrival times. It may grow; rows that are there do not change."""

    def number(self, row: int) -> int:
        """The place of a request among those of its class: what it draws random numbers by."""

    def first(self) -> Iterator[Call]:
        """The requests that wait for no answer, in order of arrival."""

    def answered(self, row: int, at_s: float) -> Iterable[Call]:
        """The requests that follow the answer to `row`, which the client has at `at_s`: none before `at_s`."""

    def failed(self, row: int, at_s: float) -> Iterable[Call]:
        """The requests that come though `row` was given up at `at_s`; those that needed its answer do not."""


# The rows of a workload as a source: some arrive at their own times, others follow answers.


class Script:
    """A workload whose rows may follow others (`after_row`, `also_after`), `delay_s` after the last answer.

    What follows a request that was given up never arrives: a conversation ends there. A join one of whose requests was
    given up never arrives either; what does not wait for that request goes on.
    """

    def __init__(self, workload: Workload) -> None:
        self.rows = workload
        self._following = Following(workload)
        self._numbers: list[int] | None = None

    def number(self, row: int) -> int:
        if self._numbers is None:
            self._numbers = places_in_class(self.rows.class_index).tolist()
        return self._numbers[row]

    def first(self) -> Iterator[Call]:
        arrival_s, after = self.rows.arrival_s, self.rows.after_row
        for row in range(len(self.rows)) if after is None else np.flatnonzero(after < 0).tolist():
            yield Call(arrival_s.item(row), row)

    def answered(self, row: int, at_s: float) -> list[Call]:
        return self._following.calls(row, at_s)

    def failed(self, row: int, at_s: float) -> list[Call]:
        return []


class Following:
    """The rows that answers let go: those that wait for one answer, and joins as their last answer comes.

    A closed loop's rows may grow (`take`). Rows from `end` on are left out, and what waits for them.
    """

    def __init__(self, workload: Workload, end: int | None = None) -> None:
        self._missing: dict[int, tuple[int, float]] = {}  # joins: answers to come, and the latest that came
        self.take(workload, end)

    def take(self, workload: Workload, end: int | None = None) -> None:
        """Take the rows of a workload; those that were there before are the same."""
        self._delay_s, self._also_after = workload.delay_s, workload.also_after
        self.followers: dict[int, list[int]] = {}
        if workload.after_row is None:
            return
        later = np.flatnonzero(workload.after_row[:end] >= 0)
        for row, before in zip(later.tolist(), workload.after_row[later].tolist(), strict=True):
            self.followers.setdefault(before, []).append(row)
            for other in self._also_after[row] if self._also_after is not None else ():
                self.followers.setdefault(other, []).append(row)

    def calls(self, row: int, at_s: float) -> list[Call]:
        """The requests that come as `row` has its answer at `at_s`."""
        found = []
        for each in self.followers.get(row, ()):
            last_s: float | None = at_s
            if self._also_after is not None and (others := self._also_after[each]):
                last_s = self._last_answer(each, len(others) + 1, at_s)
            if last_s is not None:
                found.append(Call(last_s + (0.0 if self._delay_s is None else self._delay_s.item(each)), each))
        return found

    def _last_answer(self, row: int, answers: int, at_s: float) -> float | None:
        """When a join has all its answers, one of which comes at `at_s`; None while one is missing.

        A front end may have the answers of one moment seen in another order than they are told of.
        """
        missing, latest_s = self._missing.pop(row, (answers, at_s))
        latest_s = max(latest_s, at_s)
        if missing > 1:
            self._missing[row] = missing - 1, latest_s
            return None
        return latest_s


def places_in_class(class_index: Ints) -> Ints:
    """For each row, how many rows of its class stand before it."""
    order = np.argsort(class_index, kind="stable")
    counts = np.bincount(class_index)
    places = np.empty(len(class_index), dtype=np.int64)
    places[order] = np.arange(len(class_index)) - np.repeat(np.cumsum(counts) - counts, counts)
    return places


# Users in a closed loop as a source: each issues its next request when its last one was answered.

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
