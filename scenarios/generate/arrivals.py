"""Arrival times drawn from an arrival process, on a clock that its profile and its switches speed up and slow down."""

import numpy as np

from scenarios.generate import rate_clock
from scenarios.generate.rate_clock import Clock
from scenarios.schema.arrival import Arrival, Stream
from simulator.workload import Floats


def draw_arrivals(config: Arrival, stream: Stream, until_s: float, most: int) -> Floats:
    """The arrival times in [0, until_s), ascending, float64[n]; only the first `most` of them.

    `stream(purpose)` gives the random numbers. A later `until_s` adds arrivals and changes none of the earlier.
    """
    clock = _clock(config, stream, until_s)
    reading_s = until_s if clock is None else clock.read(until_s)
    readings = config.points(stream("arrivals"), config.rate * reading_s, most) / config.rate
    times = readings if clock is None else clock.times(readings)
    return times[: int(np.searchsorted(times, until_s))]


def expected_arrivals(config: Arrival, until_s: float) -> float:
    """The expected number of arrivals in [0, until_s)."""
    if config.profile is None:
        return config.mean_rate * until_s
    return config.mean_rate * rate_clock.from_profile(config.profile).read(until_s)


def _clock(config: Arrival, stream: Stream, until_s: float) -> Clock | None:
    """The clock on which the process runs; None for real time."""
    profile = None if config.profile is None else rate_clock.from_profile(config.profile)
    switches = config.switches(stream, until_s)
    return profile if switches is None else rate_clock.modulated(profile or rate_clock.steady(), *switches)
