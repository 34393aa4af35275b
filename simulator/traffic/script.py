"""The rows of a workload as a source: some arrive at their own times, others follow answers."""

from collections.abc import Iterator

import numpy as np

from simulator.traffic.source import Call
from simulator.workload import Ints, Workload


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
