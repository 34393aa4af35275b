"""Times drawn from a distribution."""

from typing import assert_never

import numpy as np

from scenarios import normal
from scenarios.schema.durations import ExponentialTime, LogNormalTime, TimeConfig, UniformTime
from simulator.workload import Floats

_BELOW_ONE = np.nextafter(1.0, 0.0)


def draw_times(config: TimeConfig, rng: np.random.Generator, count: int) -> Floats:
    """`count` times in seconds, each the inverse CDF of a uniform number: the first k are the same for all counts."""
    if isinstance(config, (int, float)):
        return np.full(count, float(config))
    uniform = rng.random(count)
    if isinstance(config, ExponentialTime):
        return -np.log1p(-uniform) * config.mean_s
    if isinstance(config, UniformTime):
        return config.min_s + (config.max_s - config.min_s) * uniform
    if isinstance(config, LogNormalTime):
        z = normal.inverse_cdf(np.clip(uniform, 1e-300, _BELOW_ONE))
        times: Floats = config.median_s * np.exp(config.sigma * z)
        return times
    assert_never(config)
