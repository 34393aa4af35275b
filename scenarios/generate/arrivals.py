"""Arrival times drawn from an arrival process.

Every process is drawn in its steady state, as if it had always run before time 0 (constant apart, whose first request
arrives at 0). So the expected number of arrivals up to t is the integral of the rate, from the start.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import assert_never

import numpy as np

from scenarios.generate import rate_clock, switching
from scenarios.generate.rate_clock import Clock
from scenarios.generate.sums import Draw, sums_beyond
from scenarios.schema.mmpp import Mmpp
from scenarios.schema.workload import ArrivalConfig, Constant, Gamma, OnOff, Poisson, Weibull
from simulator.workload import Floats


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
    """Coefficient of variation of the gaps; for onoff and mmpp of counts over times much longer than their periods."""
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
    if isinstance(config, Mmpp):
        return math.sqrt(switching.dispersion(config))
    assert_never(config)


def _clock(config: ArrivalConfig, stream: Callable[[str], np.random.Generator], until_s: float) -> Clock | None:
    """The clock on which the process runs; None for real time."""
    profile = None if config.profile is None else rate_clock.from_profile(config.profile)
    if not isinstance(config, (OnOff, Mmpp)):
        return profile
    return rate_clock.modulated(profile or rate_clock.steady(), *switching.switches(config, stream, until_s))


def _renewals(config: ArrivalConfig, rng: np.random.Generator, until: float, most: int) -> Floats:
    """The points below `until`, at most the first `most`, of the stationary process with gaps of mean 1."""
    if isinstance(config, Constant):
        return np.arange(min(math.ceil(until), most), dtype=np.float64)
    first, gaps = _gaps(config, rng)
    cv = 1.0 if isinstance(config, (OnOff, Mmpp)) else variation(config)
    points = sums_beyond(gaps, until, math.ceil(until), cv, first, most)
    return points[: min(int(np.searchsorted(points, until)), most)]


def _gaps(config: Poisson | OnOff | Mmpp | Gamma | Weibull, rng: np.random.Generator) -> tuple[Floats, Draw]:
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


def weibull_shape(cv: float) -> float:
    """The Weibull shape k with this coefficient of variation: cv^2 = G(1 + 2/k) / G(1 + 1/k)^2 - 1, by bisection."""
    target = math.log1p(cv * cv)
    low, high = 0.05, 1000.0  # cv falls with the shape: far above 100 at one end, below 0.01 at the other
    for _ in range(100):
        middle = math.sqrt(low * high)
        above = math.lgamma(1 + 2 / middle) - 2 * math.lgamma(1 + 1 / middle) > target
        low, high = (middle, high) if above else (low, middle)
    return math.sqrt(low * high)
