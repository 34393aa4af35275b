"""Every arrival process against its own theory: rates, gaps, counts. Seeds are fixed, tolerances are sampling error."""

import itertools
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter
from scipy import stats

from scenarios.generate import arrivals
from scenarios.random_draws import stream
from scenarios.schema.arrivals.weibull import weibull_shape
from scenarios.schema.client import ArrivalConfig
from simulator.errors import InputError
from simulator.workload import Floats

ADAPTER: TypeAdapter[ArrivalConfig] = TypeAdapter(ArrivalConfig)


def config(process: str, **keys: Any) -> ArrivalConfig:
    return ADAPTER.validate_python({"process": process, **keys})


def draw(process: ArrivalConfig, until_s: float, seed: int = 1) -> Floats:
    return arrivals.draw_arrivals(process, lambda purpose: stream(seed, "c", purpose), until_s, 10**9)


def cv(gaps: Floats) -> float:
    return float(gaps.std() / gaps.mean())


def test_poisson_gaps_are_exponential_and_nothing_is_clipped() -> None:
    gaps = np.diff(draw(config("poisson", rate=5), 40_000))
    assert len(gaps) == pytest.approx(200_000, rel=0.01)
    assert stats.kstest(gaps, stats.expon(scale=1 / 5).cdf).pvalue > 0.01
    # the largest of n exponential gaps is about ln n: 12.2 means here; a clip at 3 means would show twice
    assert 9.5 < gaps.max() * 5 < 20
    assert gaps.mean() == pytest.approx(1 / 5, rel=0.01)


def test_poisson_counts_are_poisson() -> None:
    counts = np.histogram(draw(config("poisson", rate=5), 20_000), bins=20_000, range=(0, 20_000))[0]
    assert counts.mean() == pytest.approx(5, rel=0.02)
    assert counts.var() / counts.mean() == pytest.approx(1, rel=0.05)


@pytest.mark.parametrize("variation", [0.3, 1.1, 4.0])
def test_gamma_gaps(variation: float) -> None:
    gaps = np.diff(draw(config("gamma", rate=2, cv=variation), 100_000))
    # arrival times of 1e5 s hold no gap below 1e-11 s, of which a gamma with large cv has many: test those above 1 us
    distribution = stats.gamma(variation**-2, scale=0.5 * variation**2)
    below = distribution.cdf(1e-6)
    assert np.mean(gaps < 1e-6) == pytest.approx(below, abs=4 * math.sqrt(0.25 / len(gaps)))
    assert stats.kstest(gaps[gaps >= 1e-6], lambda gap: (distribution.cdf(gap) - below) / (1 - below)).pvalue > 0.01
    assert gaps.mean() == pytest.approx(0.5, rel=0.03)
    assert cv(gaps) == pytest.approx(variation, rel=0.03)


def test_burstiness_is_the_shape() -> None:
    assert np.array_equal(
        draw(config("gamma", rate=2, burstiness=0.25), 1000), draw(config("gamma", rate=2, cv=2.0), 1000)
    )


@pytest.mark.parametrize("variation", [0.01, 0.5, 1.0, 3.0, 100.0])
def test_weibull_shape_has_the_variation(variation: float) -> None:
    shape = weibull_shape(variation)
    square = math.exp(math.lgamma(1 + 2 / shape) - 2 * math.lgamma(1 + 1 / shape)) - 1
    assert math.sqrt(square) == pytest.approx(variation, rel=1e-6)


@pytest.mark.parametrize("variation", [0.5, 2.0])
def test_weibull_gaps(variation: float) -> None:
    gaps = np.diff(draw(config("weibull", rate=4, cv=variation), 50_000))
    shape = weibull_shape(variation)
    assert stats.kstest(gaps, stats.weibull_min(shape, scale=1 / (4 * math.gamma(1 + 1 / shape))).cdf).pvalue > 0.01
    assert gaps.mean() == pytest.approx(0.25, rel=0.02)
    assert cv(gaps) == pytest.approx(variation, rel=0.03)


def test_constant_gaps_from_zero() -> None:
    assert draw(config("constant", rate=4), 1.0).tolist() == [0.0, 0.25, 0.5, 0.75]
    assert len(draw(config("constant", rate=10), 0.7)) == 7  # though 10 x 0.7 is above 7 in floating point
    assert draw(config("constant", rate=4), 1.001).tolist() == [0.0, 0.25, 0.5, 0.75, 1.0]


@pytest.mark.parametrize(
    "process",
    [
        config("gamma", rate=1, cv=3.0),
        config("weibull", rate=1, cv=3.0),
        config("poisson", rate=1),
        config("onoff", rate=4, on_s=5, off_s=15),
        config("mmpp", rate=1, states=[(4.0, 5.0), (0.0, 15.0)]),
    ],
    ids=lambda process: process.process,
)
def test_processes_are_in_their_steady_state_from_the_start(process: ArrivalConfig) -> None:
    # 20 expected in 20 s. A gamma or Weibull of cv 3 whose first gap is an ordinary one makes about 4 more (cv^2 / 2).
    counts = np.array([len(draw(process, 20.0, seed)) for seed in range(1000)])
    error = counts.std() / math.sqrt(len(counts))
    assert counts.mean() == pytest.approx(20, abs=3.5 * error)
    assert error < 0.7


def test_onoff_rate_periods_and_dispersion() -> None:
    process = config("onoff", rate=8.3, on_s=23, off_s=53)
    times = draw(process, 1_000_000)
    mean_rate = 8.3 * 23 / 76
    assert len(times) / 1e6 == pytest.approx(mean_rate, rel=0.02)
    assert arrivals.expected_arrivals(process, 1e6) == pytest.approx(mean_rate * 1e6)
    gaps = np.diff(times)
    # an off period shows as a gap; those far longer than 1 / 8.3 s are off periods: exponential, without memory
    silent = gaps[gaps > 10] - 10
    assert silent.mean() == pytest.approx(53, rel=0.03)
    inside = gaps[gaps < 0.5]
    assert inside.mean() == pytest.approx(stats.truncexpon(b=0.5 * 8.3, scale=1 / 8.3).mean(), rel=0.01)
    counts = np.histogram(times, bins=500, range=(0, 1e6))[0]
    # over windows of 2000 s the index of dispersion is near its limit, 1 + 2 rate on (off / (on + off))^2
    assert counts.var() / counts.mean() == pytest.approx(process.variation**2, rel=0.2)


def test_profile_integrates_the_rate() -> None:
    profile = [(0.0, 1.0), (100.0, 3.0), (100.0, 0.0), (150.0, 0.0), (150.0, 0.5), (250.0, 0.5), (300.0, 2.0)]
    times = np.concatenate([draw(config("poisson", rate=20, profile=profile), 400, seed) for seed in range(30)])
    assert not np.any((times > 100) & (times < 150))
    expected = {(0, 50): 1.5 * 50, (50, 100): 2.5 * 50, (150, 250): 50, (250, 300): 1.25 * 50, (300, 400): 200}
    for (start, end), integral in expected.items():
        mean = 20 * integral * 30
        assert np.count_nonzero((times >= start) & (times < end)) == pytest.approx(mean, abs=4 * math.sqrt(mean))
    # inside the ramp the arrivals follow the cumulative rate t + t^2 / 100, not a straight line
    ramp = times[times < 100]
    assert stats.kstest(ramp, lambda t: (t + t * t / 100) / 200).pvalue > 0.01


def test_constant_with_profile_is_exact() -> None:
    # 10 a second for 1 s, silence for 1 s, then 20 a second; the arrival due at the jump comes when it is over
    times = draw(config("constant", rate=10, profile=[(0, 1), (1, 1), (1, 0), (2, 0), (2, 2)]), 2.2)
    assert times.tolist() == pytest.approx([0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 2.0, 2.05, 2.1, 2.15])


def test_profile_that_ends_at_zero_ends_the_arrivals() -> None:
    process = config("poisson", rate=10, profile=[(0, 1), (100, 0)])
    times = draw(process, 1e6)
    assert times.max() < 100
    assert len(times) == pytest.approx(500, abs=4 * math.sqrt(500))
    assert arrivals.expected_arrivals(process, 1e6) == pytest.approx(500)


def test_profile_changes_the_rate_of_onoff_and_not_its_periods() -> None:
    plain = config("onoff", rate=50, on_s=10, off_s=30)
    shaped = config("onoff", rate=50, on_s=10, off_s=30, profile=[(0, 1), (5000, 1), (5000, 2)])
    before, after = draw(plain, 10_000), draw(shaped, 10_000)
    assert np.allclose(before[before < 5000], after[after < 5000], rtol=0, atol=1e-6)
    # silences of more than a second stand where they stood (to about a gap between two requests)
    starts = before[:-1][np.diff(before) > 2]
    doubled = after[:-1][np.diff(after) > 2]
    assert len(starts) == pytest.approx(len(doubled), rel=0.03)
    matched = [np.abs(doubled - start).min() < 0.5 for start in starts]
    assert np.mean(matched) > 0.95
    assert np.count_nonzero(after > 5000) / np.count_nonzero(before > 5000) == pytest.approx(2, rel=0.02)


def test_onoff_with_too_many_periods_says_so() -> None:
    with pytest.raises(InputError, match="on and off periods"):
        draw(config("onoff", rate=1e6, on_s=1e-6, off_s=1e-6), 1000.0)
    with pytest.raises(InputError, match="mmpp: about 1e\\+09 states"):
        draw(config("mmpp", rate=1, states=[(1, 1e-6), (2, 1e-6)]), 1000.0)
    often = {"kind": "spike", "factor": 2, "start_s": 0, "duration_s": 1e-6, "every_s": 1e-5}
    with pytest.raises(InputError, match="periods of 1e-05 s"):
        draw(config("mmpp", rate=1, states=[(1, 10), (2, 10)], profile=often), 1000.0)


def test_mmpp_of_two_states_is_onoff() -> None:
    """The same law: rate, dispersion, and how long silence lasts."""
    onoff = config("onoff", rate=8.3, on_s=23, off_s=53)
    mmpp = config("mmpp", rate=8.3, states=[(1, 23), (0, 53)])
    assert arrivals.expected_arrivals(mmpp, 100) == pytest.approx(arrivals.expected_arrivals(onoff, 100))
    assert mmpp.variation == pytest.approx(onoff.variation)
    switching, jumping = (np.diff(draw(each, 1_000_000)) for each in (onoff, mmpp))
    assert stats.ks_2samp(switching[switching > 5], jumping[jumping > 5]).pvalue > 0.01


def test_mmpp_dispersion_is_that_of_its_counts() -> None:
    process = config("mmpp", rate=5, states=[(0.2, 8), (1, 4), (4, 2)], transitions=[[0, 1, 3], [2, 0, 1], [1, 0, 0]])
    counts = np.histogram(draw(process, 1_000_000), bins=1000, range=(0, 1e6))[0]
    assert counts.mean() == pytest.approx(process.mean_rate * 1000, rel=0.01)
    # over windows of 1000 s the index of dispersion is at its limit
    assert counts.var() / counts.mean() == pytest.approx(process.variation**2, rel=0.15)


def test_mmpp_goes_where_its_transitions_lead() -> None:
    """A circle of three states, told apart by their rates: 0, then few, then many, then 0 again."""
    circle = [[0, 1, 0], [0, 0, 1], [1, 0, 0]]
    process = config("mmpp", rate=1, states=[(0, 100), (1, 100), (50, 100)], transitions=circle)
    counts = np.histogram(draw(process, 30_000), bins=3_000, range=(0, 30_000))[0]
    state = np.where(counts == 0, 0, np.where(counts < 120, 1, 2))
    # a quiet state has tens of requests in ten seconds, a loud one hundreds; a switch within a window blurs few of them
    steps = [(int(a), int(b)) for a, b in itertools.pairwise(state) if a != b]
    along = sum(1 for a, b in steps if (a + 1) % 3 == b)
    assert along > 0.75 * len(steps)
    backwards = config(
        "mmpp", rate=1, states=[(0, 100), (1, 100), (50, 100)], transitions=np.transpose(circle).tolist()
    )
    counts = np.histogram(draw(backwards, 30_000), bins=3_000, range=(0, 30_000))[0]
    state = np.where(counts == 0, 0, np.where(counts < 120, 1, 2))
    assert sum(1 for a, b in itertools.pairwise(state) if (a + 1) % 3 == b) < 0.25 * len(steps)


@pytest.mark.parametrize("process", ["onoff", "mmpp"])
def test_a_profile_that_comes_again_goes_through_a_process_that_switches(process: str) -> None:
    """Arrivals by the phase of the period follow the profile, whatever the states do."""
    states = {"on_s": 3, "off_s": 2} if process == "onoff" else {"states": [(0.5, 3), (2, 2)]}
    day = {"kind": "diurnal", "peak_to_trough": 3, "peak_s": 10, "period_s": 40}
    times = draw(config(process, rate=30, profile=day, **states), 40_000)
    counts = np.histogram(times % 40, bins=8, range=(0, 40))[0]
    middles = np.arange(2.5, 40, 5)
    expected = 1 + 0.5 * np.sinc(1 / 8) * np.cos(2 * math.pi * (middles - 10) / 40)
    assert counts / counts.mean() == pytest.approx(expected, rel=0.06)


@pytest.mark.parametrize(
    ("shape", "points"),
    [
        ({"kind": "ramp", "duration_s": 10}, [(0, 0), (10, 1)]),
        ({"kind": "ramp", "start_s": 5, "start_factor": 3, "end_factor": 0, "duration_s": 10}, [(5, 3), (15, 0)]),
        (
            {"kind": "spike", "factor": 4, "start_s": 10, "duration_s": 5, "rise_s": 2},
            [(10, 1), (12, 4), (17, 4), (19, 1)],
        ),
        ({"kind": "spike", "factor": 0, "start_s": 0, "duration_s": 5}, [(0, 1), (0, 0), (5, 0), (5, 1)]),
    ],
)
def test_a_shape_is_short_for_points(shape: dict[str, Any], points: list[tuple[float, float]]) -> None:
    named, spelt = (config("poisson", rate=9, profile=each) for each in (shape, points))
    assert np.array_equal(draw(named, 100), draw(spelt, 100))
    assert named.ends == spelt.ends


def test_a_day_has_its_mean_rate_and_comes_again() -> None:
    day = config("constant", rate=10, profile={"kind": "diurnal", "peak_to_trough": 5, "peak_s": 30, "period_s": 100})
    times = draw(day, 300)
    assert len(times) == pytest.approx(3000, abs=1)  # the one due at 300 s may come a last bit before
    assert arrivals.expected_arrivals(day, 300) == pytest.approx(3000)
    assert not day.ends
    assert times[1000:2000] - 100 == pytest.approx(times[:1000], abs=1e-6)
    density = np.histogram(times[:1000], bins=20, range=(0, 100))[0]
    assert density.argmax() in (5, 6)
    assert density.max() / density.min() == pytest.approx(5, rel=0.1)


PROCESSES = st.one_of(
    st.builds(lambda rate: {"process": "poisson", "rate": rate}, st.floats(0.01, 50)),
    st.builds(lambda rate: {"process": "constant", "rate": rate}, st.floats(0.01, 50)),
    st.builds(lambda rate, v: {"process": "gamma", "rate": rate, "cv": v}, st.floats(0.01, 50), st.floats(0.05, 20)),
    st.builds(lambda rate, v: {"process": "weibull", "rate": rate, "cv": v}, st.floats(0.01, 50), st.floats(0.05, 20)),
    st.builds(
        lambda rate, on, off: {"process": "onoff", "rate": rate, "on_s": on, "off_s": off},
        st.floats(0.1, 50),
        st.floats(0.5, 50),
        st.floats(0.5, 50),
    ),
    st.builds(
        lambda rate, states: {"process": "mmpp", "rate": rate, "states": [(1.0, 5.0), *states]},
        st.floats(0.1, 50),
        st.lists(st.tuples(st.floats(0, 5), st.floats(0.5, 50)), min_size=1, max_size=4),
    ),
)
FACTORS = st.lists(st.tuples(st.integers(0, 60), st.sampled_from([0.0, 0.3, 1.0, 2.0])), min_size=1, max_size=6).filter(
    lambda points: any(factor > 0 for _, factor in points)
)

SHAPES = st.one_of(
    st.builds(
        lambda start, end, at, length, exponential: {
            **{"kind": "ramp", "start_factor": start, "end_factor": end, "start_s": at, "duration_s": length},
            "exponential": exponential,
        },
        st.floats(0.1, 3),
        st.floats(0.1, 3),
        st.floats(0, 60),
        st.floats(0.5, 60),
        st.booleans(),
    ),
    st.builds(
        lambda ratio, peak, period: {"kind": "diurnal", "peak_to_trough": ratio, "peak_s": peak, "period_s": period},
        st.floats(1, 20),
        st.floats(0, 60),
        st.floats(1, 90),
    ),
    st.builds(
        lambda factor, at, length, rest: {
            **{"kind": "spike", "factor": factor, "start_s": at, "duration_s": length, "rise_s": 0.5},
            "every_s": None if rest is None else at + length + 1.5 + rest,
        },
        st.sampled_from([0.0, 0.5, 4.0]),
        st.floats(0, 30),
        st.floats(0.5, 30),
        st.none() | st.floats(0, 30),
    ),
)


@given(PROCESSES, st.none() | FACTORS | SHAPES, st.integers(0, 2**32), st.floats(0.1, 60), st.floats(0, 60))
def test_sorted_within_the_time_and_a_prefix_of_longer_runs(
    process: dict[str, Any], profile: Any, seed: int, until_s: float, more_s: float
) -> None:
    if isinstance(profile, list):
        profile = sorted(profile, key=lambda point: point[0])
    process = {**process, "profile": profile}
    arrival = ADAPTER.validate_python(process)
    times = draw(arrival, until_s, seed)
    assert np.all(np.diff(times) >= 0)
    assert np.all((times >= 0) & (times < until_s))
    few = arrivals.draw_arrivals(arrival, lambda purpose: stream(seed, "c", purpose), until_s, 5)
    assert np.array_equal(few, times[:5])
    longer = draw(arrival, until_s + more_s, seed)
    assert np.array_equal(longer[: len(times)], times)
    assert np.all(longer[len(times) :] >= until_s)


def test_expected_arrivals_through_outages_that_come_again() -> None:
    outage = {"kind": "spike", "factor": 0, "start_s": 30, "duration_s": 40, "every_s": 170}
    process = config("poisson", rate=2, profile=outage)
    found = [arrivals.expected_arrivals(process, until_s) for until_s in (30, 70, 170, 200, 220, 3400)]
    assert found == pytest.approx([60, 60, 260, 320, 320, 20 * 260])


@given(FACTORS, st.lists(st.floats(0, 100), min_size=1, max_size=20))
def test_clock_and_its_inverse_agree(points: list[tuple[int, float]], readings: list[float]) -> None:
    clock = arrivals.from_profile(tuple(sorted(points, key=lambda point: point[0])))
    readings.sort()
    for reading, time_s in zip(readings, clock.times(np.array(readings)), strict=True):
        if math.isinf(time_s):
            assert clock.read(1e6) <= reading
        else:
            assert clock.read(float(time_s)) == pytest.approx(reading, rel=1e-9, abs=1e-9)
