"""Intervals against scipy's t, and whether they cover what they claim to."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from simulator.metrics.intervals import (
    mean_interval,
    paired_difference,
    paired_ratio,
    summary_intervals,
    t_quantile,
)


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


def test_ratio_of_pairs() -> None:
    found = paired_ratio([2.0, 20.0, 200.0], [1.0, 10.0, 100.0])
    assert math.isclose(found.mean, 2.0)
    assert math.isclose(found.low, 2.0)
    assert paired_ratio([2.0, 8.0, 0.0], [1.0, 2.0, 5.0]).n == 2
    assert math.isclose(paired_ratio([2.0, 8.0], [1.0, 2.0]).mean, math.sqrt(8))
    assert paired_ratio([], []).n == 0


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


def test_summaries_of_several_seeds() -> None:
    found = summary_intervals([{"a": 1.0, "b": None, "c": True}, {"a": 3.0, "b": 2.0, "c": False}])
    assert list(found) == ["a", "b", "c"]
    assert found["a"].mean == 2.0
    assert found["b"].n == 1
    assert found["c"].mean == 0.5
    assert summary_intervals([]) == {}
