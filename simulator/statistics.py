"""Statistics of runs: sums of long columns, intervals of means, of percentiles and of differences, and warm-up."""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from statistics import NormalDist, fmean, stdev

import numpy as np
from numpy.typing import NDArray

# Sums of long columns, of which a piece is in memory at a time, as numpy would add up the whole.

Floats = NDArray[np.float64]

AT_ONCE = 1 << 17  # numbers that numpy itself adds up; at least 128


def pairwise_sum(count: int, part: Callable[[slice], Floats], start: int = 0) -> float:
    """The sum of `count` floats from `start` on, of which `part` gives a stretch: that of `numpy.sum`, to the last bit.

    numpy adds up two halves by themselves, the first of a multiple of eight numbers, until 128 are left: pairwise
    summation (N. J. Higham, The Accuracy of Floating Point Summation, SIAM J. Sci. Comput. 14 (1993) 783-799).
    """
    if count <= AT_ONCE:
        return float(part(slice(start, start + count)).sum())
    half = count // 2
    half -= half % 8
    return pairwise_sum(half, part, start) + pairwise_sum(count - half, part, start + half)


# Confidence intervals over independent replications: of a mean, and of a difference paired by replication.

UNBOUNDED = (-math.inf, math.inf)
Values = Iterable[float | int | bool | None]


@dataclass(frozen=True, slots=True)
class Interval:
    """A mean of `n` values and its two-sided interval. One value has no interval: its bounds are NaN."""

    mean: float
    low: float
    high: float
    n: int

    @property
    def half_width(self) -> float:
        """The longer of its two sides; what stands behind a plus-minus sign where they are equal."""
        return max(self.high - self.mean, self.mean - self.low)

    @property
    def excludes_zero(self) -> bool:
        """True if the interval of the mean does not contain 0."""
        return self.low > 0 or self.high < 0


def mean_interval(values: Values, level: float = 0.95, bounds: tuple[float, float] = UNBOUNDED) -> Interval:
    """Student's t interval of the mean. Undefined values (None, NaN) are left out: `n` says how many remain.

    `bounds` are the least and the greatest value that the mean can have. Between two finite ones the interval is that
    of the logit of the mean, its standard error by the delta method, as is usual for proportions in surveys (SAS/STAT,
    PROC SURVEYFREQ, `CL(TYPE=LOGIT)`; Korn and Graubard, Analysis of Health Surveys, 1999). With one finite bound the
    t interval is cut there, which takes nothing from its coverage.
    """
    known = [value for value in map(_float, values) if not math.isnan(value)]
    n = len(known)
    if n == 0:
        return Interval(math.nan, math.nan, math.nan, 0)
    mean = fmean(known)
    if n == 1:
        return Interval(mean, math.nan, math.nan, 1)
    half = t_quantile((1 + level) / 2, n - 1) * stdev(known) / math.sqrt(n)
    low, high = bounds
    if half > 0 and math.isfinite(high - low) and low < mean < high:
        part, width = (mean - low) / (high - low), half / (high - low)
        logit, side = math.log(part / (1 - part)), width / (part * (1 - part))
        ends = [low + (high - low) * (1 + math.tanh((logit + each) / 2)) / 2 for each in (-side, side)]
        return Interval(mean, min(ends[0], mean), max(ends[1], mean), n)
    return Interval(mean, max(mean - half, low), min(mean + half, high), n)


def paired_difference(a: Values, b: Values, level: float = 0.95, bounds: tuple[float, float] = UNBOUNDED) -> Interval:
    """The interval of a - b, seed by seed: common random numbers cancel out what the seeds do to both.

    Seeds where either is undefined are left out. `bounds` are those of a and of b: the interval is cut where their
    difference ends. ValueError unless the two are of equal length.
    """
    found = mean_interval([x - y for x, y in _pairs(a, b)], level)
    most = bounds[1] - bounds[0]
    return Interval(found.mean, max(found.low, -most), min(found.high, most), found.n) if found.n > 1 else found


def t_quantile(p: float, df: int) -> float:
    """The p-quantile of Student's t with a whole number of degrees of freedom; ValueError outside 0 < p < 1, df >= 1.

    By bisection on the distribution function, which is a finite sum for whole df (Abramowitz and Stegun, 26.7.3-4).
    """
    if not 0 < p < 1 or df < 1:
        raise ValueError(f"t quantile needs 0 < p < 1 and df >= 1, not p = {p}, df = {df}")
    low, high = -math.pi / 2, math.pi / 2  # of theta = atan(t / sqrt(df))
    while True:
        theta = (low + high) / 2
        if theta in (low, high):
            return math.sqrt(df) * math.tan(theta)
        low, high = (theta, high) if _cumulative(theta, df) < p else (low, theta)


def _cumulative(theta: float, df: int) -> float:
    cosine, sine = math.cos(theta), math.sin(theta)
    term = cosine if df % 2 else 1.0
    total = 0.0
    for k in range(df % 2, df - 1, 2):  # odd: cos, 2/3 cos^3, ...; even: 1, 1/2 cos^2, 3/8 cos^4, ...
        total += term
        term *= cosine * cosine * (k + 1) / (k + 2)
    between = 2 / math.pi * (theta + sine * total) if df % 2 else sine * total  # P(-t < T < t), odd in t
    return (1 + between) / 2


def _float(value: float | int | bool | None) -> float:
    return math.nan if value is None else float(value)


def _pairs(a: Values, b: Values) -> list[tuple[float, float]]:
    xs, ys = list(map(_float, a)), list(map(_float, b))
    if len(xs) != len(ys):
        raise ValueError(f"pairs need as many values on both sides, not {len(xs)} and {len(ys)}")
    return [(x, y) for x, y in zip(xs, ys, strict=True) if not (math.isnan(x) or math.isnan(y))]


# The error of the mean of one long series whose values are correlated: nonoverlapping batch means.
#
# The series is cut into 20 batches, whose means are nearly independent if each is long enough; between 10 and 30
# are enough whatever the length (B. Schmeiser, Batch size effects in the analysis of simulation output, Operations
# Research 30 (1982)). What correlation is left between neighbours widens the interval by sqrt((1 + r) / (1 - r)),
# with r the lag-1 correlation of the batch means, held within 0 and 0.8 (A. Tafazzoli, J. R. Wilson, Skart: a
# skewness- and autoregression-adjusted batch-means procedure for simulation analysis, IIE Transactions 43 (2011)).

BATCHES = 20
LEAST = 2 * BATCHES  # values; fewer tell nothing of their correlation
_MOST_CORRELATION = 0.8


@dataclass(frozen=True, slots=True)
class BatchError:
    """The standard error of the mean of a series, and its degrees of freedom."""

    standard: float
    freedom: int

    def half_width(self, level: float) -> float:
        """Half the width of the two-sided interval at this level."""
        return t_quantile((1 + level) / 2, self.freedom) * self.standard


def batch_error(values: Floats) -> BatchError | None:
    """How far the mean of a series may be off, by its batch means; None for fewer than `LEAST` values.

    What does not divide by 20 is left out at the start.
    """
    size = len(values) // BATCHES
    if len(values) < LEAST:
        return None
    means = values[len(values) - size * BATCHES :].reshape(BATCHES, size).mean(axis=1)
    deviations = means - means.mean()
    squares = float(deviations @ deviations)
    if squares <= 0.0:
        return BatchError(0.0, BATCHES - 1)
    correlation = float(deviations[1:] @ deviations[:-1]) / squares
    correlation = min(max(correlation, 0.0), _MOST_CORRELATION)
    widened = (1 + correlation) / (1 - correlation)
    return BatchError(math.sqrt(squares / (BATCHES - 1) / BATCHES * widened), BATCHES - 1)


# Intervals of percentiles from one series, and how many values a percentile needs.
#
# The interval lies between two of the values themselves. Of n independent values, the number below the p-quantile
# is binomial, so ranks r and s with P(Bin(n, p) < r) <= 2.5 % and P(Bin(n, p) >= s) <= 2.5 % bound it, whatever the
# distribution (H. A. David, H. N. Nagaraja, Order Statistics (2003), 7.1). Neighbouring requests wait in the same
# queue: correlated values count as fewer independent ones, as many as would leave the share of values below the
# percentile as uncertain as its batch means say (R. S. Woodruff, Confidence intervals for medians and other
# position measures, JASA 47 (1952); E. L. Korn, B. I. Graubard, Confidence intervals for proportions with small
# expected number of positive counts estimated from survey data, Survey Methodology 24 (1998), for the binomial with
# an effective number).

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


# The difference between percentiles of two series on the same requests, by the bootstrap.
#
# Blocks are drawn, not values: neighbouring requests wait in the same queue, and a sample that tears them apart
# would be too sure. Of 20 blocks that lie side by side, 20 are drawn with replacement (E. Carlstein, The use of
# subseries values for estimating the variance of a general statistic from a stationary sequence, Annals of
# Statistics 14 (1986)), and the interval is between the percentiles of what the samples give (B. Efron, R.
# Tibshirani, An Introduction to the Bootstrap (1993), 13.3). Two series lose and keep the same blocks: what the
# requests do to both cancels out.
#
# For one series `percentiles.percentile_interval` is the better choice. A difference has no ranks to lean on.

RESAMPLES = 1_000
_MOST_VALUES = 2_000  # of a series that a sample's percentile may fall on, evenly by rank: the rest lies between these

Weights = NDArray[np.float64]


def bootstrap_difference(a: Floats, b: Floats, percent: float, *, level: float = 0.95, seed: int = 0) -> Interval:
    """A percentile of `a` less that of `b`, and its interval: the same requests in the same order in both.

    ValueError unless they are of equal length. It is no better than the percentiles themselves: where one of them has
    too few values (`percentile_interval`), so has the difference.
    """
    if len(a) != len(b):
        raise ValueError(f"pairs need as many values on both sides, not {len(a)} and {len(b)}")
    n = len(a)
    if not n:
        return Interval(np.nan, np.nan, np.nan, 0)
    value = float(np.percentile(a, percent)) - float(np.percentile(b, percent))
    if n < LEAST:
        return Interval(value, np.nan, np.nan, n)
    drawn = np.random.default_rng(seed).multinomial(BATCHES, np.full(BATCHES, 1 / BATCHES), RESAMPLES)
    weights = drawn.astype(np.float64)  # products of whole numbers: exact, whatever the order of their sums
    found = _percentiles(a, percent / 100, weights) - _percentiles(b, percent / 100, weights)
    low, high = np.percentile(found, (100 * (1 - level) / 2, 100 * (1 + level) / 2)).tolist()
    return Interval(value, min(low, value), max(high, value), n)


def _percentiles(values: Floats, p: float, weights: Weights) -> Floats:
    """The p-quantile of each sample, which holds block k `weights[sample, k]` times."""
    n = len(values)
    order = np.argsort(values, kind="stable")
    block = np.arange(n) * BATCHES // n
    wanted = p * (weights @ np.bincount(block, minlength=BATCHES).astype(np.float64))
    # Where samples put their percentiles: around its own rank, by as much as the shares of the blocks differ.
    shares = np.bincount(block[order[: max(1, round(p * n))]], minlength=BATCHES) / np.bincount(block)
    reach = 8 * float(shares.std()) / BATCHES**0.5 * n + BATCHES
    for first, last in ((max(0, int(p * n - reach)), min(n - 1, int(p * n + reach))), (0, n - 1)):
        ranks = np.unique(np.linspace(first, last, min(_MOST_VALUES, last - first + 1)).astype(np.int64))
        place = np.searchsorted(ranks, np.arange(n))  # of the first of these ranks that is no lower
        inside = place < len(ranks)
        cells = block[order][inside] * len(ranks) + place[inside]
        counts = np.bincount(cells, minlength=BATCHES * len(ranks)).reshape(BATCHES, len(ranks)).cumsum(axis=1)
        below = (weights @ counts.astype(np.float64) < wanted[:, None]).sum(axis=1)
        if (first == 0 or not (below == 0).any()) and (last == n - 1 or not (below == len(ranks)).any()):
            break
    return np.asarray(values[order][ranks[np.minimum(below, len(ranks) - 1)]], dtype=np.float64)


# Where the warm-up of a series ends: MSER-5.
#
# A run starts empty, so its first values are not those of the steady state. The rule cuts off as many as make the
# standard error of the mean of the rest smallest (K. P. White, An effective truncation heuristic for bias reduction
# in simulation output, Simulation 69 (1997)), over means of five values each (K. P. White, M. J. Cobb, S. C.
# Spratt, A comparison of five steady-state truncation heuristics for simulation, WSC 2000).

RULE = "MSER-5"
BATCH = 5  # values that are averaged before the rule looks at them
LEAST_BATCHES = 10  # batches; fewer say nothing


@dataclass(frozen=True, slots=True)
class Cut:
    """The number of values to leave out at the start.

    `settled` is False where no steady state was found, and nothing is cut: the values are too few, or still change in
    the second half, as those of a server do whose queue only grows.
    """

    count: int
    settled: bool


def mser5(values: Floats) -> Cut:
    """Where the warm-up of a series ends; NaN values are not allowed.

    The statistic of a cut at d of m batch means is the sum of the squares of the rest about its mean over (m - d)^2,
    and the cut is where it is least, of equals the first. Cuts up to the middle are looked at: a minimum there, at the
    very end of what may be cut, is none.
    """
    batches = len(values) // BATCH
    if batches < LEAST_BATCHES:
        return Cut(0, settled=False)
    means = values[: batches * BATCH].reshape(batches, BATCH).mean(axis=1)
    means = means - means.mean()  # sums of squares lose fewer digits
    left = np.arange(batches, 0, -1)
    total, squares = (np.cumsum(each[::-1])[::-1] for each in (means, means * means))
    statistic = (squares - total * total / left) / (left * left)
    middle = batches // 2
    place = int(np.argmin(statistic[: middle + 1]))
    return Cut(0, settled=False) if place == middle else Cut(place * BATCH, settled=True)
