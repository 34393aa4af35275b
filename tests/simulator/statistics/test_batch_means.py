"""Batch means against a written-out version, and their ends."""

import math

import numpy as np
import pytest
from scipy import stats

from simulator.statistics import batch_error
from tests.batch_means import batch_means_interval


def series(seed: int, count: int, memory: float = 0.0) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """An autoregressive series of mean 5: each value remembers this share of the one before."""
    noise = np.random.default_rng(seed).normal(size=count)
    values = np.empty(count)
    last = 0.0
    for place in range(count):
        last = memory * last + noise[place]
        values[place] = last
    return values + 5.0


@pytest.mark.parametrize("count", [40, 59, 1_003])
def test_it_is_the_definition(count: int) -> None:
    values = series(1, count, 0.7)
    size = count // 20
    kept = values[count - 20 * size :]
    means = np.array([kept[i * size : (i + 1) * size].mean() for i in range(20)])
    r = np.clip(((means[1:] - means.mean()) * (means[:-1] - means.mean())).sum() / (means.var() * 20), 0, 0.8)
    half = float(stats.t.ppf(0.975, 19)) * means.std(ddof=1) / math.sqrt(20) * math.sqrt((1 + r) / (1 - r))
    found = batch_means_interval(values)
    assert found.mean == values.mean()
    assert found.n == count
    assert (found.low, found.high) == pytest.approx((values.mean() - half, values.mean() + half), rel=1e-12)


def test_correlation_widens_the_interval() -> None:
    alone, remembering = series(2, 4_000), series(2, 4_000, 0.9)
    wide = batch_means_interval(remembering).half_width / float(stats.sem(remembering))
    assert wide > 3 * batch_means_interval(alone).half_width / float(stats.sem(alone))


def test_few_values_have_no_interval() -> None:
    found = batch_means_interval(np.arange(39.0))
    assert (found.mean, found.n) == (19.0, 39)
    assert math.isnan(found.low)
    assert math.isnan(found.high)
    assert batch_error(np.arange(39.0)) is None
    assert math.isnan(batch_means_interval(np.zeros(0)).mean)


def test_equal_values_are_certain() -> None:
    found = batch_means_interval(np.full(100, 2.5))
    assert (found.low, found.mean, found.high) == (2.5, 2.5, 2.5)


def test_an_interval_ends_where_values_do() -> None:
    found = batch_means_interval(np.array([0.0] * 95 + [9.0] * 5), bounds=(0.0, math.inf))
    assert found.low == 0.0 < found.mean < found.high
