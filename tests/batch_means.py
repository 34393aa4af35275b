"""The interval of the mean of one series by batch means: what intervals of percentiles rest on, held against theory."""

import math

import numpy as np

from simulator.statistics import UNBOUNDED, Floats, Interval, batch_error


def batch_means_interval(values: Floats, level: float = 0.95, bounds: tuple[float, float] = UNBOUNDED) -> Interval:
    """The mean of a series of correlated values and its interval, cut at `bounds`; NaN ends for too few values.

    The series has to be in its steady state: cut its warm-up off first.
    """
    if not len(values):
        return Interval(math.nan, math.nan, math.nan, 0)
    mean, error = float(np.mean(values)), batch_error(values)
    if error is None:
        return Interval(mean, math.nan, math.nan, len(values))
    half = error.half_width(level)
    return Interval(mean, max(mean - half, bounds[0]), min(mean + half, bounds[1]), len(values))
