"""Confidence intervals over independent replications: of a mean, and of a difference paired by replication."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from statistics import fmean, stdev

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
