"""MSER-5 against its definition, and on series whose warm-up is known."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.statistics import BATCH, Cut, Floats, mser5


def naive(values: Floats) -> int | None:
    """The statistic written out: the sum of squares of what is left about its own mean, over its number squared."""
    means = [float(np.mean(values[i : i + BATCH])) for i in range(0, len(values) - BATCH + 1, BATCH)]
    middle = len(means) // 2
    found = []
    for cut in range(middle + 1):
        rest = np.array(means[cut:])
        found.append(float(((rest - rest.mean()) ** 2).sum()) / len(rest) ** 2)
    place = int(np.argmin(found))
    return None if place == middle else place * BATCH


@given(st.lists(st.integers(-50, 50), min_size=50, max_size=120), st.integers(0, 2**32 - 1))
def test_it_is_the_definition(values: list[int], seed: int) -> None:
    noisy = np.array(values) + np.random.default_rng(seed).normal(size=len(values))  # no ties
    expected = naive(noisy)
    assert mser5(noisy) == (Cut(0, settled=False) if expected is None else Cut(expected, settled=True))


@pytest.mark.parametrize("seed", range(5))
def test_a_step_is_found_where_it_is(seed: int) -> None:
    values = np.random.default_rng(seed).normal(size=2_000)
    values[:300] += 8.0
    found = mser5(values)
    assert found.settled
    assert 300 <= found.count <= 310


@pytest.mark.parametrize("seed", range(5))
def test_a_slow_start_is_cut_off_and_the_rest_is_kept(seed: int) -> None:
    times = np.arange(4_000)
    found = mser5(10 * np.exp(-times / 150) + np.random.default_rng(seed).normal(size=len(times)))
    assert found.settled
    assert 250 <= found.count <= 1_200  # where the start has fallen from 10 to below 2, before it is long gone


def test_what_is_steady_loses_little() -> None:
    cuts = [mser5(np.random.default_rng(seed).normal(size=2_000)) for seed in range(20)]
    assert all(cut.settled for cut in cuts)
    assert np.median([cut.count for cut in cuts]) <= 40


def test_what_never_settles_is_not_cut() -> None:
    assert mser5(np.arange(1_000.0)) == Cut(0, settled=False)


@pytest.mark.parametrize("count", [0, 1, 49])
def test_few_values_say_nothing(count: int) -> None:
    assert mser5(np.zeros(count)) == Cut(0, settled=False)


def test_equal_values_are_all_kept() -> None:
    assert mser5(np.full(100, 3.25)) == Cut(0, settled=True)
