"""Intervals of rates: redrawn percentiles are percentiles, they bracket the rate, and differences are paired."""

import math
from dataclasses import replace

import numpy as np
import pytest

from scenarios.plan.answer import Bounds, _redrawn, bounds_of_seeds, bounds_of_trace, crossing, difference, moved
from scenarios.plan.goal import Goal
from scenarios.plan.trial import Trial

GOAL = Goal("p99_ttft_ms", 100.0)


def trial(rate: float, latencies: np.ndarray) -> Trial:
    value = float(np.percentile(latencies, 99))
    excess = GOAL.excess(value)
    return Trial(rate, 1, 0, GOAL.holds(value), excess, GOAL, (GOAL,), (value,), (latencies,))


def runs(count: int = 4000, power: float = 2.0, at: tuple[float, ...] = (8.0, 9.0, 10.0, 11.0, 12.0)) -> list[Trial]:
    """Latencies that grow with a power of the rate, of the same requests at each."""
    drawn = np.random.default_rng(5).exponential(100 / math.log(100), count)
    return [trial(rate, drawn * (rate / 10) ** power) for rate in at]


def test_a_draw_of_every_block_once_is_the_percentile() -> None:
    values = np.random.default_rng(1).lognormal(3, 1, 3001)
    for goal in (GOAL, Goal("p50_ttft_ms", 1), Goal("p90_ttft_ms", 1)):
        (found,) = _redrawn(goal, values, np.ones((1, 40)))
        assert goal.quantile is not None
        rank = np.sort(values)[[math.floor(goal.quantile * 3001) - 1, min(math.ceil(goal.quantile * 3001) + 1, 3000)]]
        assert rank[0] <= found <= rank[1]
    (mean,) = _redrawn(Goal("mean_ttft_ms", 1), values, np.ones((1, 40)))
    assert mean == pytest.approx(values.mean())


def test_blocks_are_drawn_as_a_whole() -> None:
    """The first half is slow, the second quick: a draw without the first half has the percentile of the second."""
    values = np.concatenate((np.full(100, 50.0), np.full(100, 2.0)))
    assert _redrawn(GOAL, values, np.array([[0.0, 2.0], [2.0, 0.0], [1.0, 1.0]])).tolist() == [2.0, 50.0, 50.0]


def test_requests_that_do_not_count_are_left_out() -> None:
    values = np.array([1.0, math.nan, 3.0, math.nan])
    (mean,) = _redrawn(Goal("mean_ttft_ms", 1), values, np.ones((1, 2)))
    assert mean == 2.0


def test_the_interval_holds_the_bracket_and_narrows_with_more_requests() -> None:
    widths = []
    for count in (1000, 30_000):
        trials = runs(count)
        between = crossing(trials)
        assert between is not None
        held = max(each.rate for each in trials if each.holds)
        failed = min(each.rate for each in trials if not each.holds)
        assert held <= between <= failed
        bounds = bounds_of_trace(trials, held, failed)
        assert bounds.low <= held < failed <= bounds.high
        low, high = np.exp(np.quantile(bounds.draws, (0.025, 0.975)))
        assert low <= between <= high
        widths.append(high / low)
    assert widths[0] > widths[1] > 1


def test_covers_the_rate_of_the_law_behind_the_traffic() -> None:
    """Latencies are exponential x rate^2, at their limit at 10: 95 % of the intervals should hold it."""
    covered = 0
    for seed in range(100):
        drawn = np.random.default_rng(seed).exponential(100 / math.log(100), 3000)
        trials = [trial(rate, drawn * (rate / 10) ** 2) for rate in (9.2, 9.7, 10.2, 10.8)]
        draws = bounds_of_trace(trials, 9.7, None).draws
        low, high = np.exp(np.quantile(draws, (0.025, 0.975)))
        covered += low <= 10.0 <= high
    assert 88 <= covered <= 99


def test_slower_steps_move_the_rate_by_the_law_of_scaling() -> None:
    """Latency ~ rate^2: limits 5 % tighter hold at a rate 1.05^-0.5 as large, in a time 1.05 as slow."""
    assert moved(runs(), 1.05) == pytest.approx(1.05**-1.5 - 1, abs=1e-3)
    assert moved(runs(power=50.0), 1.05) == pytest.approx(1.05 ** -(1 + 1 / 50) - 1, abs=2e-3)
    assert moved(runs()[:1], 1.05) is None


def test_seeds_have_students_interval_of_the_logarithm() -> None:
    bounds = bounds_of_seeds([9.0, 10.0, 11.0])
    assert bounds.value == pytest.approx((9 * 10 * 11) ** (1 / 3))
    half = 4.302653 * np.std(np.log([9, 10, 11]), ddof=1) / math.sqrt(3)
    assert math.log(bounds.high / bounds.value) == pytest.approx(half)
    assert bounds_of_seeds([9.0]).low == pytest.approx(9.0)


def test_differences_are_paired() -> None:
    draws = np.random.default_rng(2).normal(0, 0.2, 400)
    one = Bounds(1.0, 0.7, 1.4, draws)
    near = replace(one, draws=draws + 0.01)
    assert difference(near, one) is not None
    assert difference(near, one) or pytest.approx((0.01, 0.01)) == ()
    low, high = difference(one, replace(one, draws=np.roll(draws, 1))) or (0.0, 0.0)
    assert low < 0 < high
    assert difference(one, replace(one, draws=draws[:3])) is None


def test_stopped_runs_tell_nothing() -> None:
    stopped = Trial(50.0, 1, 0, False, 20.0, GOAL, (GOAL,))
    bounds = bounds_of_trace([stopped], 9.0, 50.0)
    assert (bounds.value, bounds.low, bounds.high, len(bounds.draws)) == (9.0, 9.0, 50.0, 0)
    assert crossing([stopped]) is None
