import numpy as np
import pytest

from simulator import statistics
from simulator.statistics import AT_ONCE, pairwise_sum


def of_unequal_size(count: int) -> np.ndarray:
    """Numbers whose sum hangs on the order in which they are added up."""
    rng = np.random.default_rng(count)
    return rng.standard_normal(count) * 10.0 ** rng.integers(-8, 8, count)


@pytest.mark.parametrize("count", [0, 1, 7, 128, 129, 1000, 1001, 4095, 4096, 12_345, 99_991])
def test_a_sum_in_pieces_is_that_of_numpy_to_the_last_bit(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(statistics, "AT_ONCE", 128)
    values = of_unequal_size(count)
    longest = 0

    def part(some: slice) -> np.ndarray:
        nonlocal longest
        longest = max(longest, some.stop - some.start)
        return values[some]

    assert pairwise_sum(count, part) == values.sum()
    assert longest <= 128


def test_more_than_numpy_adds_up_at_once() -> None:
    values = of_unequal_size(5 * AT_ONCE + 3)
    assert pairwise_sum(len(values), lambda some: values[some]) == values.sum()
    assert sum(float(values[start : start + AT_ONCE].sum()) for start in range(0, len(values), AT_ONCE)) != values.sum()
