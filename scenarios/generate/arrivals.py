"""Arrival times drawn from an arrival process.

Every process is drawn in its steady state, as if it had always run before time 0 (constant apart, whose first request
arrives at 0). So the expected number of arrivals up to t is the integral of the rate, from the start.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import assert_never

import numpy as np

from scenarios.generate import rate_clock
from scenarios.generate.rate_clock import RateClock
from scenarios.schema.workload import ArrivalConfig, Constant, Gamma, OnOff, Poisson, Weibull
from simulator.errors import InputError
from simulator.workload import Floats

Draw = Callable[[int], Floats]

MOST_PERIODS = 20_000_000


def draw_arrivals(
    config: ArrivalConfig, stream: Callable[[str], np.random.Generator], until_s: float, most: int
) -> Floats:
    """The arrival times in [0, until_s), ascending, float64[n]; only the first `most` of them.

    `stream(purpose)` gives the random numbers. A later `until_s` adds arrivals and changes none of the earlier.
    """
    clock = _clock(config, stream, until_s)
    reading_s = until_s if clock is None else clock.read(until_s)
    readings = _renewals(config, stream("arrivals"), config.rate * reading_s, most) / config.rate
    times = readings if clock is None else clock.times(readings)
    return times[: int(np.searchsorted(times, until_s))]


def expected_arrivals(config: ArrivalConfig, until_s: float) -> float:
    """The expected number of arrivals in [0, until_s)."""
    if config.profile is None:
        return config.mean_rate * until_s
    return config.mean_rate * rate_clock.from_profile(config.profile).read(until_s)


def variation(config: ArrivalConfig) -> float:
    """Coefficient of variation of the gaps; for onoff of counts over times much longer than its periods."""
    if isinstance(config, Poisson):
        return 1.0
    if isinstance(config, Constant):
        return 0.0
    if isinstance(config, Gamma):
        return config.variation
    if isinstance(config, Weibull):
        return config.cv
    if isinstance(config, OnOff):
        # index of dispersion of an interrupted Poisson process in the limit: 1 + 2 rate on off^2 / (on + off)^2
        return math.sqrt(1 + 2 * config.rate * config.on_s * (config.off_s / (config.on_s + config.off_s)) ** 2)
    assert_never(config)


def _clock(config: ArrivalConfig, stream: Callable[[str], np.random.Generator], until_s: float) -> RateClock | None:
    """The clock on which the process runs; None for real time."""
    profile = None if config.profile is None else rate_clock.from_profile(config.profile)
    if not isinstance(config, OnOff):
        return profile
    steady = rate_clock.from_profile([(0.0, 1.0)])
    switch_s, starts_on = _switches(config, stream("periods"), until_s)
    return rate_clock.switched(profile or steady, switch_s, starts_on=starts_on)


def _switches(config: OnOff, rng: np.random.Generator, until_s: float) -> tuple[Floats, bool]:
    """The times at which the source switches, up to the first after until_s; and whether it starts on."""
    expected = 2 * until_s / (config.on_s + config.off_s)
    if expected > MOST_PERIODS:
        raise InputError(
            f"onoff: about {expected:.3g} on and off periods in {until_s:g} s, at most {MOST_PERIODS} are allowed",
            hint="longer on_s and off_s, or a shorter workload",
        )
    starts_on = bool(rng.random() < config.on_s / (config.on_s + config.off_s))
    means = np.array([config.on_s, config.off_s] if starts_on else [config.off_s, config.on_s])

    def periods(count: int) -> Floats:
        drawn: Floats = rng.standard_exponential((count, 2)) * means
        return drawn.ravel()

    return _sums_beyond(periods, until_s, math.ceil(expected / 2), 1.0), starts_on


def _renewals(config: ArrivalConfig, rng: np.random.Generator, until: float, most: int) -> Floats:
    """The points below `until`, at most the first `most`, of the stationary process with gaps of mean 1."""
    if isinstance(config, Constant):
        return np.arange(min(math.ceil(until), most), dtype=np.float64)
    first, gaps = _gaps(config, rng)
    cv = 1.0 if isinstance(config, OnOff) else variation(config)
    points = _sums_beyond(gaps, until, math.ceil(until), cv, first, most)
    return points[: min(int(np.searchsorted(points, until)), most)]


def _gaps(config: Poisson | OnOff | Gamma | Weibull, rng: np.random.Generator) -> tuple[Floats, Draw]:
    """The first gap, as float64[0 or 1], and the draw of the others; all of mean 1.

    The gap around time 0 is longer than others (its density is gap x density), and a uniform share of it remains.
    Exponential gaps have no memory, and need no first.
    """
    if isinstance(config, Gamma):
        shape = config.variation**-2
        first = rng.random(1) * rng.gamma(shape + 1.0, 1.0 / shape, 1)
        return first, lambda count: rng.gamma(shape, 1.0 / shape, count)
    if isinstance(config, Weibull):
        power = 1.0 / weibull_shape(config.cv)
        scale = 1.0 / math.gamma(1.0 + power)
        first = rng.random(1) * scale * rng.gamma(1.0 + power, 1.0, 1) ** power
        return first, lambda count: rng.standard_exponential(count) ** power * scale
    return np.empty(0), rng.standard_exponential


def _sums_beyond(
    gaps: Draw, until: float, expected: int, cv: float, first: Floats | None = None, most: int | None = None
) -> Floats:
    """Cumulative sums of gaps, at least up to the first one that is not below `until`, or up to `most` of them."""
    parts = [] if first is None else [first]
    count = expected + math.ceil(5.0 * cv * math.sqrt(expected)) + 16
    while True:
        parts.append(gaps(count if most is None else min(count, most)))
        sums = np.cumsum(np.concatenate(parts))  # all over again: the same to the last bit however often it grows
        if sums[-1] >= until or (most is not None and len(sums) >= most):
            return sums
        count = len(sums)


def weibull_shape(cv: float) -> float:
    """The Weibull shape k with this coefficient of variation: cv^2 = G(1 + 2/k) / G(1 + 1/k)^2 - 1, by bisection."""
    target = math.log1p(cv * cv)
    low, high = 0.05, 1000.0  # cv falls with the shape: far above 100 at one end, below 0.01 at the other
    for _ in range(100):
        middle = math.sqrt(low * high)
        above = math.lgamma(1 + 2 / middle) - 2 * math.lgamma(1 + 1 / middle) > target
        low, high = (middle, high) if above else (low, middle)
    return math.sqrt(low * high)
