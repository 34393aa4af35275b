"""Intervals of percentiles: scipy's binomial, the number of values that they need, and correlated values."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from simulator.statistics import _ranks, percentile_interval, values_needed


@given(st.integers(1, 100_000), st.sampled_from([0.01, 0.05, 0.5, 0.9, 0.95, 0.99, 0.999]))
def test_ranks_are_those_of_scipys_binomial(n: int, p: float) -> None:
    low, high = _ranks(n, p, 0.025)
    binomial = stats.binom(n, p)
    assert low == 0 or binomial.cdf(low - 1) <= 0.025 * (1 + 1e-9)
    assert binomial.cdf(low) > 0.025 * (1 - 1e-9)
    assert binomial.cdf(high - 1) >= 0.975 * (1 - 1e-9)
    assert high == 1 or binomial.cdf(high - 2) < 0.975 * (1 + 1e-9)


@pytest.mark.parametrize(("percent", "expected"), [(50, 6), (90, 36), (95, 72), (99, 368), (99.9, 3_688), (1, 368)])
def test_how_many_values_a_percentile_needs(percent: float, expected: int) -> None:
    assert values_needed(percent) == expected
    p = max(percent, 100 - percent) / 100
    assert p**expected <= 0.025 < p ** (expected - 1)


def test_a_percentile_lies_inside() -> None:
    for percent in (0, 100, -3):
        with pytest.raises(ValueError, match="between 0 and 100"):
            values_needed(percent)


def test_p99_of_200_values_has_no_upper_end() -> None:
    found = percentile_interval(np.random.default_rng(0).normal(size=200), 99)
    assert found.high == math.inf
    assert math.isfinite(found.low)
    assert not found.is_bounded
    assert percentile_interval(np.random.default_rng(0).normal(size=2_000), 99).is_bounded


def test_the_first_percent_of_200_values_has_no_lower_end() -> None:
    found = percentile_interval(np.random.default_rng(0).normal(size=200), 1)
    assert found.low == -math.inf
    assert math.isfinite(found.high)


def test_the_ends_are_values_and_the_percentile_is_numpys() -> None:
    values = np.random.default_rng(3).exponential(size=1_000)
    found = percentile_interval(values, 90)
    assert found.value == np.percentile(values, 90)
    assert found.low in values
    assert found.high in values
    assert found.low < found.value < found.high
    assert found.n == 1_000


def test_correlated_values_count_as_fewer() -> None:
    alone = np.random.default_rng(4).exponential(size=2_000)
    repeated = np.repeat(alone[:100], 20)  # 100 values, said 20 times over
    apart, together = percentile_interval(alone, 50), percentile_interval(repeated, 50)
    assert apart.effective > 1_000
    assert 20 <= together.effective <= 200
    assert together.high - together.low > 2 * (apart.high - apart.low)
    assert percentile_interval(repeated, 99).high == math.inf  # it would be bounded, were the values independent


def test_values_without_spread_and_without_number() -> None:
    same = percentile_interval(np.full(500, 7.0), 95)
    assert (same.low, same.value, same.high, same.effective) == (7.0, 7.0, 7.0, 500)
    none = percentile_interval(np.zeros(0), 95)
    assert (none.n, none.effective) == (0, 0)
    assert math.isnan(none.value)
    one = percentile_interval(np.array([3.0]), 50)
    assert (one.value, one.low, one.high) == (3.0, -math.inf, math.inf)
