"""The block bootstrap against one that writes its samples out, and the pairing that it keeps."""

import math

import numpy as np
import pytest

from simulator.statistics import RESAMPLES, Floats, Interval, bootstrap_difference


def written_out(values: Floats, percent: float) -> Floats:
    """The percentile of every sample: its values repeated as often as their block was drawn, the first at or above."""
    drawn = np.random.default_rng(0).multinomial(20, [1 / 20] * 20, RESAMPLES)
    block = np.arange(len(values)) * 20 // len(values)
    found = []
    for weights in drawn:
        sample = np.sort(np.repeat(values, weights[block]))
        found.append(sample[max(math.ceil(round(percent / 100 * len(sample), 9)), 1) - 1])
    return np.array(found)


def bootstrap_percentile(values: Floats, percent: float, seed: int = 0) -> Interval:
    """A percentile of one series: its difference from that of zeros."""
    return bootstrap_difference(values, np.zeros(len(values)), percent, seed=seed)


def series(count: int) -> Floats:
    return np.random.default_rng(count).exponential(1.0, count)


@pytest.mark.parametrize("percent", [1, 50, 90, 99])
@pytest.mark.parametrize("count", [40, 333, 1_500])
def test_it_is_the_definition(count: int, percent: float) -> None:
    values = series(count)
    found, ends = bootstrap_percentile(values, percent), np.percentile(written_out(values, percent), (2.5, 97.5))
    assert found.mean == np.percentile(values, percent)
    assert found.low == pytest.approx(min(ends[0], found.mean), rel=1e-12)
    assert found.high == pytest.approx(max(ends[1], found.mean), rel=1e-12)


def test_long_series_are_thinned_and_lose_nothing_to_the_eye() -> None:
    values = series(60_000)
    ends = np.percentile(written_out(values, 50), (2.5, 97.5))
    found = bootstrap_percentile(values, 50)
    assert (found.low, found.high) == pytest.approx(tuple(ends), rel=2e-3)


def test_pairs_are_drawn_together() -> None:
    """What moves both alike cancels out."""
    shared, own = np.repeat(series(40), 50), np.random.default_rng(1).uniform(0.0, 0.1, 2_000)
    found = bootstrap_difference(shared + own + 0.05, shared, 50)
    apart = bootstrap_percentile(shared, 50)
    assert found.high - found.low < 0.5 * (apart.high - apart.low)
    assert found.excludes_zero


def test_nothing_differs_from_itself() -> None:
    found = bootstrap_difference(series(500), series(500), 95)
    assert (found.low, found.mean, found.high) == (0.0, 0.0, 0.0)


def test_few_values_have_no_interval() -> None:
    assert math.isnan(bootstrap_percentile(series(39), 50).low)
    assert math.isnan(bootstrap_percentile(series(0), 50).mean)
    with pytest.raises(ValueError, match="not 3 and 4"):
        bootstrap_difference(series(3), series(4), 50)


def test_equal_input_equal_interval() -> None:
    assert bootstrap_percentile(series(400), 90) == bootstrap_percentile(series(400), 90)
    assert bootstrap_percentile(series(400), 90) != bootstrap_percentile(series(400), 90, seed=1)
