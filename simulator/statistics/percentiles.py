"""Intervals of percentiles from one series, and how many values a percentile needs.

The interval lies between two of the values themselves. Of n independent values, the number below the p-quantile is
binomial, so ranks r and s with P(Bin(n, p) < r) <= 2.5 % and P(Bin(n, p) >= s) <= 2.5 % bound it, whatever the
distribution (H. A. David, H. N. Nagaraja, Order Statistics (2003), 7.1). Neighbouring requests wait in the same queue:
correlated values count as fewer independent ones, as many as would leave the share of values below the percentile as
uncertain as its batch means say (R. S. Woodruff, Confidence intervals for medians and other position measures, JASA 47
(1952); E. L. Korn, B. I. Graubard, Confidence intervals for proportions with small expected number of positive counts
estimated from survey data, Survey Methodology 24 (1998), for the binomial with an effective number).
"""

import math
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from simulator.statistics.batch_means import batch_error
from simulator.statistics.sums import Floats

_WIDE = 12.0  # standard deviations of the binomial distribution that are looked at: beyond there is nothing


@dataclass(frozen=True, slots=True)
class PercentileInterval:
    """A percentile of `n` values, worth `effective` independent ones, and its two-sided interval.

    An end is infinite where the values are too few for one: no value is surely beyond the percentile. Without any
    value all is NaN.
    """

    value: float
    low: float
    high: float
    n: int
    effective: int

    @property
    def is_bounded(self) -> bool:
        """True if there were enough values for both ends."""
        return math.isfinite(self.low) and math.isfinite(self.high)


def values_needed(percent: float, level: float = 0.95) -> int:
    """The least number of independent values that bound a percentile from both sides: 368 for p99, 72 for p95.

    The largest of n values lies below the p-quantile with probability p^n, the smallest above it with (1 - p)^n; each
    may be (1 - level) / 2 at most. ValueError outside 0 < percent < 100.
    """
    if not 0 < percent < 100:
        raise ValueError(f"a percentile lies between 0 and 100, not at {percent}")
    share = max(percent, 100 - percent) / 100
    return math.ceil(math.log((1 - level) / 2) / math.log(share) - 1e-9)


def percentile_interval(values: Floats, percent: float, level: float = 0.95) -> PercentileInterval:
    """A percentile of a series of correlated values in the order in which they came, and its interval.

    The percentile is numpy's. Fewer than 40 values tell nothing of their correlation and are taken as independent.
    """
    n = len(values)
    if not n:
        return PercentileInterval(math.nan, math.nan, math.nan, 0, 0)
    value = float(np.percentile(values, percent))
    effective = effective_number(values, value, level)
    low, high = _ranks(effective, percent / 100, (1 - level) / 2)
    below, above = low * n // effective, -(-high * n // effective)
    places = sorted({min(max(rank, 1), n) - 1 for rank in (below, above)})
    ends = np.partition(values, places)[[places[0], places[-1]]].tolist()
    return PercentileInterval(
        value,
        min(ends[0], value) if low > 0 else -math.inf,
        max(ends[1], value) if high <= effective else math.inf,
        n,
        effective,
    )


def effective_number(values: Floats, threshold: float, level: float = 0.95) -> int:
    """As many independent values as leave the share of those up to a threshold equally uncertain; 1 to their number."""
    n = len(values)
    below = (values <= threshold).astype(np.float64)
    error, share = batch_error(below), float(below.mean())
    if error is None or error.standard == 0.0 or share in (0.0, 1.0):
        return n
    # Student's t makes up for the few batches that the error is estimated from; the binomial knows nothing of it.
    widened = error.half_width(level) / NormalDist().inv_cdf((1 + level) / 2)
    return max(1, min(n, int(share * (1 - share) / widened**2)))


def _ranks(n: int, p: float, tail: float) -> tuple[int, int]:
    """The ranks, from 1, of `n` values that bound the p-quantile from below and above; 0 and n + 1 where none does."""
    mean, deviation = n * p, math.sqrt(n * p * (1 - p))
    first = max(0, math.floor(mean - _WIDE * deviation - _WIDE))
    last = min(n, math.ceil(mean + _WIDE * deviation + _WIDE))
    k = np.arange(first, last)
    # The probabilities by their ratios, which no factorial is needed for.
    logs = np.concatenate(([0.0], np.cumsum(np.log((n - k) / (k + 1) * (p / (1 - p))))))
    chances = np.exp(logs - logs.max())
    at_most = np.cumsum(chances) / chances.sum()  # P(Bin <= first), P(Bin <= first + 1), ...
    low = int(np.searchsorted(at_most, tail, side="right"))  # outcomes that are rare enough
    high = int(np.searchsorted(at_most, 1 - tail, side="left"))
    return first + low, first + high + 1
