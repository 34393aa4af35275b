"""Confidence intervals of metrics over seeds: of a mean, and of the difference between two policies paired by seed."""

from simulator.metrics.table import METRICS
from simulator.statistics.intervals import UNBOUNDED, Interval, Values, mean_interval, paired_difference


def metric_interval(key: str, values: Values) -> Interval:
    """The 95 % interval of a metric's mean over seeds, within the values that the metric can have."""
    return mean_interval(values, bounds=_bounds(key))


def metric_difference(key: str, a: Values, b: Values) -> Interval:
    """The 95 % interval of the difference of a metric between two runs, paired by seed, within what is possible."""
    return paired_difference(a, b, bounds=_bounds(key))


def _bounds(key: str) -> tuple[float, float]:
    return METRICS[key].bounds if key in METRICS else UNBOUNDED
