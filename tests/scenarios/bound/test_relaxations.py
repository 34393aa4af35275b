"""The machines of the bounds, against what is known and against all orders tried."""

import random
from collections.abc import Sequence
from itertools import combinations

import numpy as np
import pytest

from scenarios.bound.bound import agreeable, earliest_end_s, fewest_late, least_mean_flow_s, least_percentile_s


def _array(*values: float) -> np.ndarray:
    return np.array(values)


def test_shortest_remaining_work_first() -> None:
    """The long one gives way to the short one that comes while it is served: flows of 1 and 5."""
    assert least_mean_flow_s(_array(0, 1), _array(4, 1)) == (5 + 1) / 2
    assert least_mean_flow_s(_array(0, 1), _array(4, 3.5)) == (4 + 6.5) / 2
    assert least_mean_flow_s(_array(0, 10), _array(1, 1)) == 1


def test_the_end_of_all_is_that_after_the_worst_arrival() -> None:
    assert earliest_end_s(_array(0, 0, 10), _array(1, 2, 3)) == 13
    assert earliest_end_s(_array(0, 0, 1), _array(1, 2, 3)) == 6


@pytest.mark.parametrize("seed", range(200))
def test_never_more_late_than_must_be(seed: int) -> None:
    """At most as many as the best choice of those in time leaves out; with all there at once, as many."""
    rng = random.Random(seed)
    count, at_once = rng.randint(1, 7), seed % 2
    arrival = np.sort([0.0 if at_once else rng.choice([0.0, 1.0, 2.5, 4.0, 7.0]) for _ in range(count)])
    due = arrival + [rng.choice([1.0, 2.0, 3.0, 5.0, 9.0]) for _ in range(count)]
    work = np.array([rng.choice([0.5, 1.0, 2.0, 3.0]) for _ in range(count)])
    best = max(len(chosen) for size in range(count + 1) for chosen in combinations(range(count), size)
               if _in_time(arrival, due, work, chosen))  # fmt: skip
    relaxed = [fewest_late(arrivals, dues, work[order]) for arrivals, dues, order in agreeable(arrival, due)]
    assert max(relaxed) <= count - best
    if at_once:
        assert relaxed[1] == count - best


def _in_time(arrival: np.ndarray, due: np.ndarray, work: np.ndarray, chosen: Sequence[int]) -> bool:
    """True if these can all end in time with preemption: what lies between an arrival and a due fits there."""
    return all(
        sum(work[k] for k in chosen if arrival[k] >= start and due[k] <= end) <= end - start
        for start in arrival[list(chosen)]
        for end in due[list(chosen)]
    )


def test_a_percentile_of_what_waits() -> None:
    """Ten at once of a second each: the shortest flows are 1 to 10, whoever is first."""
    arrival, work = np.zeros(10), np.ones(10)
    found = least_percentile_s(arrival, work, work, 0.5)
    assert 0.95 * 5 <= found <= 5  # the fifth of ten
    assert least_percentile_s(arrival, work, 7 * work, 0.5) == pytest.approx(7, rel=0.02)
