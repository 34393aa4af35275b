"""The rows of a workload as a source: some arrive at their own times, others follow an answer."""

from collections.abc import Iterator

import numpy as np

from simulator.traffic.source import Call
from simulator.workload import Ints, Workload


class Script:
    """A workload whose rows may follow others (`after_row`): each arrives `delay_s` after the answer it waits for.

    What follows a request that was given up never arrives: a conversation ends there.
    """

    def __init__(self, workload: Workload) -> None:
        self.rows = workload
        self._followers = followers(workload)
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
        delay_s = self.rows.delay_s
        return [
            Call(at_s + (0.0 if delay_s is None else delay_s.item(each)), each) for each in self._followers.get(row, ())
        ]

    def failed(self, row: int, at_s: float) -> list[Call]:
        return []


def followers(workload: Workload) -> dict[int, list[int]]:
    """For each row that others follow, these, ascending."""
    found: dict[int, list[int]] = {}
    if workload.after_row is not None:
        later = np.flatnonzero(workload.after_row >= 0)
        for row, before in zip(later.tolist(), workload.after_row[later].tolist(), strict=True):
            found.setdefault(before, []).append(row)
    return found


def places_in_class(class_index: Ints) -> Ints:
    """For each row, how many rows of its class stand before it."""
    order = np.argsort(class_index, kind="stable")
    counts = np.bincount(class_index)
    places = np.empty(len(class_index), dtype=np.int64)
    places[order] = np.arange(len(class_index)) - np.repeat(np.cumsum(counts) - counts, counts)
    return places
