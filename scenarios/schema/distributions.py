"""Distributions of a scenario: times in seconds, such as a pause, and token counts."""

import bisect
import itertools
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from annotated_types import Unit, doc
from pydantic import BeforeValidator, Discriminator, Field, Tag, model_validator

from scenarios import random_draws
from scenarios.schema.base import Strict, by_word, later
from scenarios.schema.source.hints import as_number

# Random times of a scenario, such as the pause before a next question: a number, or a distribution.

Time = Annotated[float, Field(ge=0, le=1e9)]
PositiveTime = Annotated[float, Field(ge=1e-9, le=1e9)]


class ExponentialTime(Strict):
    """Exponential."""

    dist: Annotated[Literal["exponential"], doc("exponential")]
    mean_s: Annotated[PositiveTime, doc("mean")]


class UniformTime(Strict):
    """Uniform between two times."""

    dist: Annotated[Literal["uniform"], doc("uniform between two times")]
    min_s: Annotated[Time, doc("smallest time")]
    max_s: Annotated[Time, doc("largest time")]

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.min_s > self.max_s:
            raise ValueError(f"min_s {self.min_s:g} is above max_s {self.max_s:g}")
        return self


class LogNormalTime(Strict):
    """Log-normal with this median and 99th percentile."""

    dist: Annotated[Literal["lognormal"], doc("log-normal")]
    median_s: Annotated[PositiveTime, doc("median")]
    p99_s: Annotated[PositiveTime, doc("99th percentile")]

    @property
    def sigma(self) -> float:
        """The standard deviation of the logarithm."""
        return math.log(self.p99_s / self.median_s) / random_draws.quantile(0.99)

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.p99_s <= self.median_s:
            raise ValueError(f"p99_s {self.p99_s:g} must be above median_s {self.median_s:g}")
        return self


TimeDistribution = Annotated[ExponentialTime | UniformTime | LogNormalTime, Field(discriminator="dist")]
TimeConfig = Annotated[
    Annotated[Time, Tag("<number>")] | Annotated[TimeDistribution, Tag("<mapping>")],
    Discriminator(lambda value: "<mapping>" if isinstance(value, (Mapping, Strict)) else "<number>"),
    Field(description="a number of seconds, or a distribution such as {dist: exponential, mean_s: 5}"),
]


# Token counts of a scenario: the distributions by their key `dist`, each with optional bounds.
#
# Bounds condition a distribution, they do not clip it: no mass piles up on them, every length between them keeps
# its relative weight (so the mean moves a little). Where no `min` is given it is 1. Lengths are whole tokens: a
# continuous distribution is rounded to the nearest one, and a bound takes in the half token beyond it.

LARGEST_LENGTH = 2**31 - 1  # where no max is given
LEAST_MASS = 1e-3  # bounds that leave less of a distribution are taken for a mistake

MIN, MAX = "least length, included; null: 1", "largest length, included"
Length = Annotated[int, Field(ge=1, le=LARGEST_LENGTH)]
Tokens = Annotated[float, Field(ge=1e-3, le=LARGEST_LENGTH)]


class _Bounded(Strict):
    """`min` and `max` in tokens, both included."""

    min: Annotated[Length | None, doc(MIN), Unit("tokens")] = None
    max: Annotated[Length | None, doc(MAX), Unit("tokens")] = None

    @property
    def lowest(self) -> int:
        return 1 if self.min is None else self.min

    @property
    def highest(self) -> int:
        return LARGEST_LENGTH if self.max is None else self.max

    @property
    def largest(self) -> int | None:
        """The largest length that can be drawn; None where nothing bounds it."""
        return self.max

    def cdf(self, tokens: float) -> float:
        """Probability, before the bounds, of at most this many tokens."""
        raise NotImplementedError

    def limits(self) -> tuple[float, float]:
        """The bounds as probabilities of the unbounded distribution: what lies between them is drawn."""
        return self.cdf(self.lowest - 0.5), self.cdf(self.highest + 0.5)

    def check_bounds(self) -> None:
        """Raise ValueError for bounds that contradict each other or leave almost nothing."""
        if self.lowest > self.highest:
            raise ValueError(f"min {self.lowest} is above max {self.highest}")
        low, high = self.limits()
        if not high - low >= LEAST_MASS:
            upper = "" if self.max is None else f" and at most {self.max}"
            raise ValueError(
                f"a share of {max(high - low, 0.0):.2g} of the distribution is at least {self.lowest}{upper} tokens,"
                f" fewer than {LEAST_MASS:g}: check the bounds and the unit"
            )

    @model_validator(mode="after")
    def _bounds_leave_something(self) -> Self:
        self.check_bounds()
        return self


class Fixed(Strict):
    """Every length is `value`."""

    dist: Annotated[Literal["fixed"], doc("one length for all")]
    value: Annotated[Length, doc("the length"), Unit("tokens")]
    min: Annotated[Length | None, doc(MIN), Unit("tokens")] = None
    max: Annotated[Length | None, doc(MAX), Unit("tokens")] = None

    @property
    def largest(self) -> int | None:
        return self.value

    @model_validator(mode="after")
    def _inside(self) -> Self:
        low, high = self.min or 1, self.max or LARGEST_LENGTH
        if not low <= self.value <= high:
            raise ValueError(f"value {self.value} is outside min {low} and max {high}")
        return self


class Uniform(Strict):
    """Every whole number from `min` to `max`, both included, equally likely."""

    dist: Annotated[Literal["uniform"], doc("every whole number of a range")]
    min: Annotated[Length, doc("smallest length, included"), Unit("tokens")]
    max: Annotated[Length, doc(MAX), Unit("tokens")]

    @property
    def largest(self) -> int | None:
        return self.max

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.min > self.max:
            raise ValueError(f"min {self.min} is above max {self.max}")
        return self


class Normal(_Bounded):
    """Normal with this mean and standard deviation before the bounds."""

    dist: Annotated[Literal["normal"], doc("normal")]
    mean: Annotated[float, Field(ge=-LARGEST_LENGTH, le=LARGEST_LENGTH), doc("mean before the bounds"), Unit("tokens")]
    sd: Annotated[Tokens, doc("standard deviation before the bounds"), Unit("tokens")]

    def cdf(self, tokens: float) -> float:
        return random_draws.cdf((tokens - self.mean) / self.sd)


class _LogNormalBody(_Bounded):
    """A lognormal given in one of three ways: `median, p99`, or `mu, sigma` (of the logarithm), or `mean, cv`."""

    median: Annotated[Tokens | None, doc("median, with `p99`"), Unit("tokens")] = None
    p99: Annotated[Tokens | None, doc("99th percentile, with `median`"), Unit("tokens")] = None
    mu: Annotated[Annotated[float, Field(ge=-50, le=50)] | None, doc("mean of the logarithm, with `sigma`")] = None
    sigma: Annotated[
        Annotated[float, Field(gt=0, le=10)] | None, doc("standard deviation of the logarithm, with `mu`")
    ] = None
    mean: Annotated[Tokens | None, doc("mean, with `cv`"), Unit("tokens")] = None
    cv: Annotated[Annotated[float, Field(ge=1e-3, le=100)] | None, doc("coefficient of variation, with `mean`")] = None

    def mu_sigma(self) -> tuple[float, float]:
        """Mean and standard deviation of the logarithm."""
        if self.median is not None and self.p99 is not None:
            return math.log(self.median), math.log(self.p99 / self.median) / _Z99
        if self.mu is not None and self.sigma is not None:
            return self.mu, self.sigma
        assert self.mean is not None, "the validator let an incomplete lognormal pass"
        assert self.cv is not None
        variance = math.log1p(self.cv * self.cv)
        return math.log(self.mean) - variance / 2, math.sqrt(variance)

    def cdf(self, tokens: float) -> float:
        mu, sigma = self.mu_sigma()
        return random_draws.cdf((math.log(tokens) - mu) / sigma) if tokens > 0 else 0.0

    def check_bounds(self) -> None:
        given = {key for key in ("median", "p99", "mu", "sigma", "mean", "cv") if getattr(self, key) is not None}
        if given not in ({"median", "p99"}, {"mu", "sigma"}, {"mean", "cv"}):
            found = ", ".join(sorted(given)) or "none of them"
            raise ValueError(f"give exactly one of the pairs median, p99 | mu, sigma | mean, cv; found {found}")
        if self.median is not None and self.p99 is not None and not self.p99 > self.median:
            raise ValueError(f"p99 {self.p99:g} must be above the median {self.median:g}")
        super().check_bounds()


class LogNormal(_LogNormalBody):
    """Lognormal: long to the right, as prompts and answers of chats are."""

    dist: Annotated[Literal["lognormal"], doc("lognormal")]


class LogNormalPareto(_LogNormalBody):
    """A lognormal whose upper end is a power law: `tail_share` of the lengths come from a Pareto with exponent
    `alpha` that starts at `tail_from`, the others from the lognormal below it.

    `tail_from` is the lognormal's own quantile at 1 - tail_share unless given: then the distribution is the
    lognormal up to there. The bounds cut both parts, and `tail_share` stays what it is.
    """

    dist: Annotated[Literal["lognormal_pareto"], doc("lognormal with a power law at its upper end")]
    tail_share: Annotated[float, Field(gt=0, lt=1), doc("share of the lengths in the tail")]
    alpha: Annotated[float, Field(gt=0, le=100), doc("exponent of the tail")]
    tail_from: Annotated[
        Tokens | None, doc("start of the tail; null: the lognormal's quantile at 1 - tail_share"), Unit("tokens")
    ] = None

    @property
    def threshold(self) -> float:
        """The start of the tail, in tokens."""
        if self.tail_from is not None:
            return self.tail_from
        mu, sigma = self.mu_sigma()
        return math.exp(mu + sigma * random_draws.quantile(1.0 - self.tail_share))

    def body_limits(self) -> tuple[float, float]:
        """Probabilities of the lognormal between which the body lies."""
        return self.cdf(self.lowest - 0.5), self.cdf(self.threshold)

    def tail_limit(self) -> float:
        """Probability of the Pareto below which the tail lies."""
        return 1.0 - math.pow(self.threshold / (self.highest + 0.5), self.alpha)

    def check_bounds(self) -> None:
        super().check_bounds()
        if not max(self.lowest - 0.5, 0.0) < self.threshold < self.highest + 0.5:
            raise ValueError(f"the tail starts at {self.threshold:.6g}, outside min {self.lowest}, max {self.highest}")
        low, high = self.body_limits()
        if not (high - low >= LEAST_MASS and self.tail_limit() >= LEAST_MASS):
            raise ValueError("the bounds leave less than 0.001 of the body or of the tail")


class Empirical(_Bounded):
    """Lengths as they were measured: `quantiles` {probability: length}, or the `values` themselves.

    Between quantiles the inverse CDF is linear. Below the lowest one it leads to `min` if that is given (and no
    quantile 0 is), else it stays at the lowest length; above the highest one likewise with `max`. A bound inside the
    quantiles cuts. `values` are drawn with replacement, those outside the bounds never.
    """

    dist: Annotated[Literal["empirical"], doc("as measured")]
    quantiles: Annotated[
        dict[float, Tokens] | None,
        BeforeValidator(lambda value: _number_keys(value)),
        doc("length for each probability (0.99: 512), linear between them"),
        Unit("tokens"),
    ] = None
    values: Annotated[
        Annotated[tuple[Length, ...], Field(strict=False, min_length=1)] | None,
        doc("lengths to draw from, with replacement"),
        Unit("tokens"),
    ] = None

    @property
    def largest(self) -> int | None:
        top = max(self.kept_values()) if self.quantiles is None else round(max(self.quantiles.values()))
        if self.quantiles is not None and self.max is not None and 1.0 not in self.quantiles:
            return self.max
        return top if self.max is None else min(top, self.max)

    def kept_values(self) -> list[int]:
        """The `values` within the bounds."""
        return [value for value in self.values or () if self.lowest <= value <= self.highest]

    def points(self) -> tuple[list[float], list[float]]:
        """The inverse CDF from 0 to 1 as (probabilities, lengths), the ends filled in."""
        assert self.quantiles is not None
        points = sorted(self.quantiles.items())
        lowest, highest = points[0], points[-1]
        if lowest[0] > 0:
            below = self.min is not None and self.min < lowest[1]
            points.insert(0, (0.0, float(self.min) if below and self.min is not None else lowest[1]))
        if highest[0] < 1:
            above = self.max is not None and self.max > highest[1]
            points.append((1.0, float(self.max) if above and self.max is not None else highest[1]))
        return [probability for probability, _ in points], [length for _, length in points]

    def cdf(self, tokens: float) -> float:
        probabilities, lengths = self.points()
        after = bisect.bisect_right(lengths, tokens)
        if after == 0:
            return 0.0
        if after == len(lengths):
            return 1.0
        share = (tokens - lengths[after - 1]) / (lengths[after] - lengths[after - 1])
        return probabilities[after - 1] + share * (probabilities[after] - probabilities[after - 1])

    def limits(self) -> tuple[float, float]:
        return super().limits() if self.quantiles is not None else (0.0, 1.0)

    def check_bounds(self) -> None:
        if (self.quantiles is None) == (self.values is None):
            raise ValueError("give exactly one of quantiles and values")
        if self.quantiles is not None:
            _check_quantiles(self.quantiles)
        super().check_bounds()
        if self.values is not None and not self.kept_values():
            raise ValueError(f"none of the values lies within min {self.lowest} and max {self.highest}")


AnyLength = Annotated[Fixed | Uniform | Normal | LogNormal | LogNormalPareto | Empirical, Field(discriminator="dist")]
_HERE = {
    "fixed": Fixed,
    "uniform": Uniform,
    "normal": Normal,
    "lognormal": LogNormal,
    "lognormal_pareto": LogNormalPareto,
    "empirical": Empirical,
}

if TYPE_CHECKING:
    LengthConfig = AnyLength
else:
    LengthConfig = later(
        f"{__name__}:AnyLength", by_word("dist", {word: f"{__name__}:{kind.__name__}" for word, kind in _HERE.items()})
    )


_Z99 = random_draws.quantile(0.99)


def _number_keys(value: Any) -> Any:
    """Quantiles that went through JSON have their probabilities as text: take text that is a number."""
    if not isinstance(value, dict):
        return value
    keys = [key if (number := as_number(key)) is None else number for key in value]
    if len(set(keys)) < len(keys):
        raise ValueError("the same probability stands twice")
    return dict(zip(keys, value.values(), strict=True))


def _check_quantiles(quantiles: dict[float, float]) -> None:
    if len(quantiles) < 2:
        raise ValueError("give at least two quantiles (one length for all: dist fixed)")
    outside = [probability for probability in quantiles if not 0 <= probability <= 1]
    if outside:
        raise ValueError(f"quantile {outside[0]:g} is not a probability between 0 and 1 (p99 is 0.99)")
    points = sorted(quantiles.items())
    for (p, length), (q, longer) in itertools.pairwise(points):
        if longer < length:
            raise ValueError(f"quantiles must not fall: {length:g} at {p:g}, but {longer:g} at {q:g}")
    if points[0][1] < 1:
        raise ValueError(f"lengths are at least 1 token, found {points[0][1]:g}")
