"""Intervals against scipy's t, and whether they cover what they claim to."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from simulator.metrics.confidence import metric_difference, metric_interval
from simulator.statistics import mean_interval, paired_difference, t_quantile


@given(st.floats(0.001, 0.999), st.integers(1, 300))
def test_t_quantile_is_scipys(p: float, df: int) -> None:
    assert math.isclose(t_quantile(p, df), float(stats.t.ppf(p, df)), rel_tol=1e-9, abs_tol=1e-9)


@pytest.mark.parametrize(("p", "df"), [(0.0, 3), (1.0, 3), (0.5, 0), (math.nan, 3)])
def test_t_quantile_refuses_what_has_none(p: float, df: int) -> None:
    with pytest.raises(ValueError, match="t quantile needs"):
        t_quantile(p, df)


@given(st.lists(st.floats(-1e6, 1e6), min_size=2, max_size=12), st.sampled_from([0.5, 0.9, 0.95, 0.99]))
def test_mean_interval_is_the_textbooks(values: list[float], level: float) -> None:
    found = mean_interval(values, level)
    assert found.n == len(values)
    assert math.isclose(found.mean, float(np.mean(values)), rel_tol=1e-9, abs_tol=1e-6)
    half = float(stats.sem(values)) * float(stats.t.ppf((1 + level) / 2, len(values) - 1))
    assert math.isclose(found.half_width, half, rel_tol=1e-6, abs_tol=1e-6)


def test_an_interval_covers_the_mean_as_often_as_it_says() -> None:
    rng = np.random.default_rng(0)
    covered = [(i.low <= 5 <= i.high) for i in (mean_interval(rng.normal(5, 2, 5)) for _ in range(4000))]
    assert 0.94 < np.mean(covered) < 0.96


def test_pairing_takes_out_what_the_seeds_do() -> None:
    seeds = np.array([10.0, 50.0, 90.0, 30.0])
    a, b = seeds + np.array([1.1, 0.9, 1.0, 1.2]), seeds
    assert mean_interval(a).low < mean_interval(b).mean  # unpaired, the seeds hide the difference
    found = paired_difference(a, b)
    assert found.excludes_zero
    assert math.isclose(found.mean, 1.05)
    assert not paired_difference(a, a).excludes_zero
    assert paired_difference(b, a).high < 0
    assert paired_difference(b, a).excludes_zero


def test_undefined_values_are_left_out_and_one_has_no_interval() -> None:
    assert mean_interval([1.0, None, math.nan, 3.0]).n == 2
    assert paired_difference([1.0, None, 4.0], [1.0, 2.0, math.nan]).n == 1
    one = mean_interval([3])
    assert (one.mean, one.n) == (3.0, 1)
    assert math.isnan(one.low)
    assert math.isnan(one.half_width)
    assert not one.excludes_zero
    assert math.isnan(mean_interval([None]).mean)


def test_pairs_must_match() -> None:
    with pytest.raises(ValueError, match="not 2 and 1"):
        paired_difference([1.0, 2.0], [1.0])


@given(st.lists(st.floats(0, 1), min_size=2, max_size=8))
def test_a_share_lies_between_nothing_and_all(shares: list[float]) -> None:
    found = metric_interval("slo_attainment", shares)
    assert 0 <= found.low <= found.mean <= found.high <= 1
    if 0 < found.mean < 1 and np.std(shares) > 1e-9:
        assert found.low > 0
        assert found.high < 1
    elif len(set(shares)) == 1:
        assert found.half_width == pytest.approx(0)


def test_a_share_by_hand() -> None:
    """logit(0.8) = ln 4; its standard error is that of the mean / (0.8 x 0.2); t of two degrees of freedom."""
    found = metric_interval("slo_attainment", [0.7, 0.8, 0.9])
    side = stats.t.ppf(0.975, 2) * 0.1 / math.sqrt(3) / 0.16
    assert found.low == pytest.approx(1 / (1 + math.exp(-(math.log(4) - side))))
    assert found.high == pytest.approx(1 / (1 + math.exp(-(math.log(4) + side))))
    assert mean_interval([0.7, 0.8, 0.9]).high > 1, "what the plain interval would say"


@pytest.mark.parametrize(("a", "b"), [(38, 2), (9.5, 0.5), (5, 5), (2, 18)])
def test_the_interval_of_a_share_covers_it_as_often_as_it_says(a: float, b: float) -> None:
    """95 % where the shares are spread evenly, 92 % where they crowd at the end; Student's t falls to 84 % there."""
    rng = np.random.default_rng(1)
    samples = [rng.beta(a, b, 5) for _ in range(1000)]
    ours, plain = (
        np.mean([each.low <= a / (a + b) <= each.high for each in map(make, samples)])
        for make in (lambda shares: metric_interval("slo_attainment", shares), mean_interval)
    )
    assert ours > 0.91
    assert ours >= plain


def test_what_cannot_be_negative_is_not() -> None:
    found = metric_interval("preemptions", [0, 0, 5])
    assert found.low == 0
    assert found.high == mean_interval([0, 0, 5]).high
    assert metric_interval("no metric of ours", [0, 0, 5]).low < 0


def test_a_difference_is_no_larger_than_it_can_be() -> None:
    wide = metric_difference("slo_attainment", [1.0, 0.0], [0.0, 0.5])
    assert (wide.low, wide.high) == (-1, 1)
    assert metric_difference("p99_ttft_ms", [1.0, 9.0], [5.0, 4.0]).low < -9
    assert metric_difference("slo_attainment", [1.0], [0.0]).n == 1
