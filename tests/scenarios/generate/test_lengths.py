"""Every length distribution against its own theory, and the normal distribution against scipy's."""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError
from scipy import stats

from scenarios import random_draws
from scenarios.generate.sessions import draw_lengths
from scenarios.random_draws import stream
from scenarios.schema.distributions import LengthConfig
from simulator.workload import Ints

ADAPTER: TypeAdapter[LengthConfig] = TypeAdapter(LengthConfig)
N = 200_000


def config(dist: str, **keys: Any) -> LengthConfig:
    return ADAPTER.validate_python({"dist": dist, **keys})


def draw(lengths: LengthConfig, count: int = N, seed: int = 1) -> Ints:
    return draw_lengths(lengths, stream(seed, "c", "input"), count)


def rounded_p_value(drawn: Ints, distribution: Any, low: float, high: float) -> float:
    """Chi-square p-value of whole lengths against a continuous distribution cut to [low, high] and rounded."""
    edges = np.unique(np.quantile(drawn, np.linspace(0, 1, 41)).astype(np.int64)) + 0.5
    edges = np.concatenate(([low], edges[(edges > low) & (edges < high)], [high]))
    observed = np.histogram(drawn, bins=edges)[0]
    expected = np.diff(distribution.cdf(edges))
    return float(stats.chisquare(observed, expected * (observed.sum() / expected.sum())).pvalue)


def test_normal_inverse_agrees_with_scipy() -> None:
    p = np.concatenate(
        (np.linspace(1e-6, 1 - 1e-6, 10_001), 10.0 ** -np.arange(7, 300, 5.0), 1 - 2.0 ** -np.arange(8, 54))
    )
    assert np.allclose(random_draws.inverse_cdf(p), stats.norm.ppf(p), rtol=1e-13, atol=1e-15)
    assert random_draws.inverse_cdf(np.array([0.0, 0.5, 1.0])).tolist() == [-math.inf, 0.0, math.inf]
    assert random_draws.quantile(0.99) == pytest.approx(2.3263478740408408, rel=1e-15)
    z = np.linspace(-30, 9, 1001)
    assert np.allclose(random_draws.cdf_of(z), stats.norm.cdf(z), rtol=1e-12, atol=0)
    assert [random_draws.cdf(z) for z in (-9.0, -1.0, 0.0, 2.5)] == pytest.approx(
        stats.norm.cdf([-9, -1, 0, 2.5]), rel=1e-13
    )


def test_fixed() -> None:
    assert draw(config("fixed", value=512), 3).tolist() == [512, 512, 512]


def test_uniform_takes_both_ends_and_favours_none() -> None:
    drawn = draw(config("uniform", min=3, max=12))
    values, counts = np.unique(drawn, return_counts=True)
    assert values.tolist() == list(range(3, 13))
    assert stats.chisquare(counts).pvalue > 0.01


def test_normal() -> None:
    drawn = draw(config("normal", mean=1000, sd=50))
    assert drawn.mean() == pytest.approx(1000, abs=0.5)
    assert drawn.std() == pytest.approx(50, rel=0.01)
    assert rounded_p_value(drawn, stats.norm(1000, 50), 0.5, 2000.5) > 0.01


def test_cut_normal_piles_nothing_on_its_bounds() -> None:
    # a clipped one would put 2.4 % on 2 and 16 % on 768
    drawn = draw(config("normal", mean=512, sd=256, min=2, max=768))
    assert drawn.min() >= 2
    assert drawn.max() == 768
    assert rounded_p_value(drawn, stats.norm(512, 256), 1.5, 768.5) > 0.01
    cut = stats.truncnorm((1.5 - 512) / 256, (768.5 - 512) / 256, loc=512, scale=256)
    assert drawn.mean() == pytest.approx(cut.mean(), rel=0.003)
    density_at_the_bound = stats.norm(512, 256).pdf(768) / (stats.norm(512, 256).cdf([1.5, 768.5]) @ [-1, 1])
    assert np.mean(drawn == 768) == pytest.approx(density_at_the_bound, rel=0.15)


@pytest.mark.parametrize(
    "keys",
    [
        {"median": 350, "p99": 4000},
        {"mu": math.log(350), "sigma": math.log(4000 / 350) / 2.3263478740408408},
        {"mean": 602.6, "cv": 1.395},
    ],
    ids=lambda keys: ",".join(keys),
)
def test_lognormal_in_three_ways(keys: dict[str, float]) -> None:
    drawn = draw(config("lognormal", **keys))
    sigma = math.log(4000 / 350) / 2.3263478740408408
    assert np.median(drawn) == pytest.approx(350, rel=0.01)
    assert np.quantile(drawn, 0.99) == pytest.approx(4000, rel=0.03)
    assert drawn.mean() == pytest.approx(350 * math.exp(sigma**2 / 2), rel=0.01)
    assert np.log(drawn).std() == pytest.approx(sigma, rel=0.01)


def test_cut_lognormal() -> None:
    drawn = draw(config("lognormal", median=350, p99=4000, min=50, max=1000))
    assert (drawn.min(), drawn.max()) == (50, 1000)
    sigma = math.log(4000 / 350) / stats.norm.ppf(0.99)
    assert rounded_p_value(drawn, stats.lognorm(sigma, scale=350), 49.5, 1000.5) > 0.01


def test_lognormal_pareto_is_the_lognormal_below_and_a_power_law_above() -> None:
    lengths = config("lognormal_pareto", mu=6.0, sigma=0.8, tail_share=0.05, alpha=1.6)
    drawn = draw(lengths, 1_000_000)
    threshold = stats.lognorm(0.8, scale=math.exp(6)).ppf(0.95)
    tail = drawn[drawn > threshold]
    assert len(tail) / len(drawn) == pytest.approx(0.05, rel=0.02)
    # the maximum-likelihood (Hill) estimate of alpha; its standard error is alpha / sqrt(n), 0.7 %
    assert 1 / np.log(tail / threshold).mean() == pytest.approx(1.6, rel=0.025)
    for q in (0.05, 0.5, 0.9):
        assert np.quantile(drawn, q) == pytest.approx(stats.lognorm(0.8, scale=math.exp(6)).ppf(q), rel=0.01)


def test_lognormal_pareto_keeps_its_share_within_bounds() -> None:
    lengths = config("lognormal_pareto", mu=2.79, sigma=0.85, tail_share=0.05, alpha=1.6, tail_from=90, max=1900)
    drawn = draw(lengths)
    assert np.mean(drawn > 90) == pytest.approx(0.05, rel=0.03)
    assert drawn.max() <= 1900
    cut = 1 - (90 / 1900.5) ** 1.6
    half = 90 * (1 - cut / 2) ** (-1 / 1.6)
    assert np.median(drawn[drawn > 90]) == pytest.approx(half, rel=0.03)


CHAT = {0.05: 41, 0.5: 129, 0.95: 451, 0.99: 601, 1.0: 1000}


def test_empirical_quantiles_come_back() -> None:
    drawn = draw(config("empirical", quantiles=CHAT))
    for q, length in CHAT.items():
        assert np.quantile(drawn, q) == pytest.approx(length, rel=0.02)
    assert np.quantile(drawn, 0.725) == pytest.approx((129 + 451) / 2, rel=0.02)
    assert drawn.max() <= 1000
    # nothing is said of what lies below the lowest quantile: it stays at that length
    assert drawn.min() == 41
    assert np.mean(drawn == 41) == pytest.approx(0.05 + 0.45 * 0.5 / 88, rel=0.05)


def test_empirical_bounds_beyond_the_quantiles_are_its_ends() -> None:
    drawn = draw(config("empirical", quantiles={0.05: 41, 0.5: 129, 0.95: 451}, min=7, max=1000))
    assert drawn.min() in (7, 8)
    assert drawn.max() in (999, 1000)
    assert np.quantile(drawn, 0.025) == pytest.approx(24, rel=0.03)
    assert np.quantile(drawn, 0.975) == pytest.approx((451 + 1000) / 2, rel=0.03)


def test_empirical_bounds_inside_the_quantiles_cut() -> None:
    whole = draw(config("empirical", quantiles=CHAT), 1_000_000)
    cut = draw(config("empirical", quantiles=CHAT, min=60, max=500), 1_000_000)
    assert (cut.min(), cut.max()) == (60, 500)
    kept = whole[(whole >= 60) & (whole <= 500)]
    assert cut.mean() == pytest.approx(kept.mean(), rel=0.003)
    assert np.mean(cut == 500) == pytest.approx(np.mean(kept == 500), abs=3e-4)
    assert np.quantile(cut, 0.25) == pytest.approx(np.quantile(kept, 0.25), abs=1)


def test_empirical_with_equal_quantiles_is_a_jump() -> None:
    drawn = draw(config("empirical", quantiles={0.0: 10, 0.3: 10, 0.8: 20, 1.0: 20}))
    assert np.mean(drawn == 10) == pytest.approx(0.3 + 0.5 * 0.05, abs=0.005)
    assert np.mean(drawn == 20) == pytest.approx(0.2 + 0.5 * 0.05, abs=0.005)
    only_high = draw(config("empirical", quantiles={0.0: 10, 0.3: 10, 0.8: 20, 1.0: 20}, min=20))
    assert np.all(only_high == 20)


def test_empirical_values() -> None:
    drawn = draw(config("empirical", values=[5, 5, 10, 400, 9000], max=1000))
    values, counts = np.unique(drawn, return_counts=True)
    assert values.tolist() == [5, 10, 400]
    assert stats.chisquare(counts, np.array([0.5, 0.25, 0.25]) * N).pvalue > 0.01


@pytest.mark.parametrize(
    ("dist", "keys", "largest"),
    [
        ("fixed", {"value": 7}, 7),
        ("uniform", {"min": 1, "max": 9}, 9),
        ("normal", {"mean": 5, "sd": 1}, None),
        ("normal", {"mean": 5, "sd": 1, "max": 20}, 20),
        ("lognormal", {"median": 5, "p99": 9}, None),
        ("empirical", {"quantiles": CHAT}, 1000),
        ("empirical", {"quantiles": CHAT, "max": 800}, 800),
        ("empirical", {"quantiles": CHAT, "max": 2000}, 1000),
        ("empirical", {"quantiles": {0.1: 5, 0.9: 50}}, 50),
        ("empirical", {"quantiles": {0.1: 5, 0.9: 50}, "max": 99}, 99),
        ("empirical", {"values": [3, 9, 4]}, 9),
        ("empirical", {"values": [3, 9, 4], "max": 5}, 4),
    ],
)
def test_largest_length_is_known_and_true(dist: str, keys: dict[str, Any], largest: int | None) -> None:
    lengths = config(dist, **keys)
    assert lengths.largest == largest
    if largest is not None:
        assert draw(lengths, 20_000).max() <= largest


DISTRIBUTIONS = st.one_of(
    st.fixed_dictionaries({"dist": st.just("normal"), "mean": st.floats(-500, 5000), "sd": st.floats(0.01, 2000)}),
    st.fixed_dictionaries({"dist": st.just("lognormal"), "mu": st.floats(-1, 9), "sigma": st.floats(0.01, 3)}),
    st.fixed_dictionaries({"dist": st.just("lognormal"), "mean": st.floats(1, 9000), "cv": st.floats(0.01, 10)}),
    st.fixed_dictionaries(
        {
            "dist": st.just("lognormal_pareto"),
            "median": st.floats(1, 500),
            "p99": st.floats(501, 9000),
            "tail_share": st.floats(0.001, 0.5),
            "alpha": st.floats(0.3, 5),
        }
    ),
    st.builds(
        lambda lengths: {
            "dist": "empirical",
            "quantiles": {(i + 1) / (len(lengths) + 1): v for i, v in enumerate(sorted(lengths))},
        },
        st.lists(st.floats(1, 9000), min_size=2, max_size=8),
    ),
    st.fixed_dictionaries(
        {"dist": st.just("empirical"), "values": st.lists(st.integers(1, 9000), min_size=1, max_size=8)}
    ),
)


@given(DISTRIBUTIONS, st.none() | st.integers(1, 3000), st.none() | st.integers(0, 9000), st.integers(0, 2**32))
def test_lengths_lie_within_bounds_and_do_not_depend_on_how_many(
    keys: dict[str, Any], low: int | None, more: int | None, seed: int
) -> None:
    high = None if more is None else (low or 1) + more
    try:
        lengths = ADAPTER.validate_python({**keys, "min": low, "max": high})
    except ValidationError:
        assume(False)
    drawn = draw(lengths, 500, seed)
    assert drawn.dtype == np.int64
    assert drawn.min() >= (low or 1)
    assert high is None or drawn.max() <= high
    assert np.array_equal(draw(lengths, 123, seed), drawn[:123])


def test_a_longer_distribution_makes_each_request_longer() -> None:
    short, long = (draw(config("lognormal", median=m, p99=10 * m), 5000) for m in (200, 300))
    assert np.all(long >= short)
    assert stats.spearmanr(short, long).statistic > 0.999
