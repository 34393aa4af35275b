"""The base of every arrival process: its rate, how the rate changes with time, and how arrivals are drawn.

A process is a file of `arrivals/`. Each is drawn in its steady state, as if it had always run before time 0 (constant
apart, whose first request arrives at 0). So the expected number of arrivals up to t is the integral of the rate, from
the start.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Literal, Self

import numpy as np
from annotated_types import Unit, doc
from pydantic import Discriminator, Field, Tag, model_validator

from scenarios.schema.base import Strict
from simulator.errors import InputError
from simulator.workload import Floats

# The `profile:` of arrivals: a factor on the rate that changes with time, as points or as a shape with a name.
#
# A shape is a shorthand: it stands for points `[t_s, factor]`, and some shapes come again after a period.

LEAST_FACTOR = 1e-6
PIECES = 96  # straight pieces of a curve: a day's are quarters of an hour

Points = Sequence[tuple[float, float]]
Moment = Annotated[float, Field(ge=0, le=1e9)]
Length = Annotated[float, Field(ge=1e-6, le=1e9)]
Factor = Annotated[float, Field(ge=0, le=1e6)]
Point = Annotated[tuple[Moment, Factor], Field(strict=False)]


class Ramp(Strict):
    """From one factor to another, and constant before and after.

    It goes by equal steps in equal times, or by equal ratios if `exponential` (vLLM's ramp-up strategies linear and
    exponential). Equal ratios are straight pieces here: a ramp by a factor of 100 is nowhere 0.03 % above the curve.
    """

    kind: Annotated[Literal["ramp"], doc("a ramp from one factor to another")]
    start_factor: Annotated[Factor, doc("factor on the rate before the ramp")] = 0.0
    end_factor: Annotated[Factor, doc("factor on the rate after the ramp")] = 1.0
    start_s: Annotated[Moment, doc("start of the ramp")] = 0.0
    duration_s: Annotated[Length, doc("length of the ramp")]
    exponential: Annotated[bool, doc("equal times give equal ratios; otherwise equal differences")] = False

    @property
    def period_s(self) -> float | None:
        return None

    def points(self) -> Points:
        if not self.exponential:
            return [(self.start_s, self.start_factor), (self.start_s + self.duration_s, self.end_factor)]
        shares = [piece / PIECES for piece in range(PIECES + 1)]
        ratio = self.end_factor / self.start_factor
        return [(self.start_s + share * self.duration_s, self.start_factor * ratio**share) for share in shares]

    @model_validator(mode="after")
    def _possible(self) -> Self:
        if self.exponential and 0 in (self.start_factor, self.end_factor):
            raise ValueError("exponential: equal ratios lead neither from 0 nor to 0; give factors above 0")
        return self


class Diurnal(Strict):
    """A sine about 1, the same every period: `rate` is the mean over a whole period."""

    kind: Annotated[Literal["diurnal"], doc("a sine that repeats every period, with mean 1")]
    peak_to_trough: Annotated[float, Field(ge=1, le=1e6), doc("highest factor / lowest factor")]
    peak_s: Annotated[Moment, doc("time of a peak")] = 0.0
    period_s: Annotated[Annotated[float, Field(ge=1, le=1e9)], doc("time from peak to peak; default: a day")] = 86_400.0

    def points(self) -> Points:
        swing = (self.peak_to_trough - 1.0) / (self.peak_to_trough + 1.0)
        phase = self.peak_s / self.period_s
        shares = [piece / PIECES for piece in range(PIECES + 1)]
        return [(share * self.period_s, 1.0 + swing * math.cos(math.tau * (share - phase))) for share in shares]


class Spike(Strict):
    """Factor 1, and for a time another: a flash crowd above 1, an outage below it."""

    kind: Annotated[Literal["spike"], doc("a different factor for some time")]
    factor: Annotated[Factor, doc("factor on the rate during the spike")]
    start_s: Annotated[Moment, doc("start of the spike")]
    duration_s: Annotated[Length, doc("length of the spike, without its flanks")]
    rise_s: Annotated[Moment, doc("length of its rise and of its fall, both linear, before and after `duration_s`")] = 0
    every_s: Annotated[Length | None, doc("time from one spike to the next; null: there is one spike")] = None

    @property
    def period_s(self) -> float | None:
        return self.every_s

    @property
    def end_s(self) -> float:
        return self.start_s + self.duration_s + 2 * self.rise_s

    def points(self) -> Points:
        top, fall = self.start_s + self.rise_s, self.start_s + self.rise_s + self.duration_s
        last = [] if self.every_s is None else [(self.every_s, 1.0)]
        return [(self.start_s, 1.0), (top, self.factor), (fall, self.factor), (self.end_s, 1.0), *last]

    @model_validator(mode="after")
    def _possible(self) -> Self:
        if self.every_s is None:
            return self
        if self.end_s > self.every_s:
            raise ValueError(f"every_s {self.every_s:g} ends before the spike does, at {self.end_s:g} s")
        if self.factor == 0 and self.duration_s > (1 - LEAST_FACTOR) * self.every_s:
            raise ValueError(f"duration_s {self.duration_s:g}: an outage all of the time, every {self.every_s:g} s")
        return self


Shape = Annotated[Ramp | Diurnal | Spike, Field(discriminator="kind")]

RateProfile = Annotated[
    Annotated[Annotated[tuple[Point, ...], Field(strict=False, min_length=1)], Tag("<points>")]
    | Annotated[Shape, Tag("<shape>")],
    Discriminator(lambda value: "<shape>" if isinstance(value, (Mapping, Strict)) else "<points>"),
]


def points_of(profile: RateProfile) -> Points:
    """The points of a profile, whichever way it was given."""
    return profile if isinstance(profile, tuple) else profile.points()


def period_of(profile: RateProfile) -> float | None:
    """The time after which a profile comes again; None for one that does not."""
    return None if isinstance(profile, tuple) else profile.period_s


def check(profile: RateProfile) -> None:
    """Raise ValueError, beginning with the key `profile`, for points that make no rate."""
    points = points_of(profile)
    for (before, _), (after, _) in itertools.pairwise(points):
        if after < before:
            raise ValueError(f"profile: times must not fall, found {before:g} before {after:g}")
    if any(0 < factor < LEAST_FACTOR for _, factor in points):
        raise ValueError(f"profile: a factor must be 0 or at least {LEAST_FACTOR:g}")
    if not any(factor > 0 for _, factor in points):
        raise ValueError("profile: at least one factor must be above 0")


MOST_PERIODS = 20_000_000

Rate = Annotated[float, Field(ge=1e-6, le=1e9)]
Stream = Callable[[str], np.random.Generator]
"""The random numbers of a purpose."""
Draw = Callable[[int], Floats]
"""The next so many gaps."""


class MeanRate(Strict):
    """Classes that have arrivals of their own, all made denser or thinner by one factor.

    `rate` is the mean of all of them together up to the workload's end, as the processes have it in expectation.
    Profiles keep their times.
    """

    rate: Annotated[Rate, doc("mean rate of all classes together; their proportions stay"), Unit("requests/s")]


class Arrival(Strict):
    """`rate` in requests per second, times the factor that `profile` gives for the moment.

    `profile` is a list of [t_s, factor]: linear between the points, constant before the first and after the last;
    two points at the same time are a jump. Or it is a shape by its name: `{kind: ramp, ...}`, `{kind: diurnal, ...}`,
    `{kind: spike, ...}`. The expected number of arrivals up to t is rate x the integral of the factor, exactly: the
    process runs on a clock that the profile speeds up and slows down (time rescaling).

    A process adds its keys, with `process: Literal["its_name"]`, and overrides what differs from Poisson's.
    """

    if TYPE_CHECKING:
        process: str  # each process declares its own word

    rate: Annotated[Rate, doc("rate at factor 1"), Unit("requests/s")]
    profile: Annotated[
        RateProfile | None,
        doc("factor on the rate: points [time in s, factor], linear between them, or a shape; null: constant"),
    ] = None

    @property
    def mean_rate(self) -> float:
        """Long-run requests per second at factor 1."""
        return self.rate

    @property
    def gap_variation(self) -> float:
        """Coefficient of variation of the gaps, on the clock of the process."""
        return 1.0

    @property
    def variation(self) -> float:
        """Coefficient of variation of the gaps; for a source that switches, of counts over much longer times."""
        return self.gap_variation

    @property
    def ends(self) -> bool:
        """Return whether the profile ends at 0, so that only finitely many requests arrive."""
        if self.profile is None or period_of(self.profile) is not None:
            return False
        return points_of(self.profile)[-1][1] == 0

    def gaps(self, rng: np.random.Generator) -> tuple[Floats, Draw]:
        """The first gap, as float64[0 or 1], and the draw of the others; all of mean 1.

        The gap around time 0 is longer than others (its density is gap x density), and a uniform share of it remains.
        Exponential gaps have no memory, and need no first.
        """
        return np.empty(0), rng.standard_exponential

    def points(self, rng: np.random.Generator, until: float, most: int) -> Floats:
        """The points below `until`, at most the first `most`, of the stationary process with gaps of mean 1."""
        first, gaps = self.gaps(rng)
        found = sums_beyond(gaps, until, math.ceil(until), self.gap_variation, first, most)
        return found[: min(int(np.searchsorted(found, until)), most)]

    def switches(self, stream: Stream, until_s: float) -> tuple[Floats, Floats] | None:
        """The times at which the rate jumps, up to the first after `until_s`, and the factor before each jump.

        None for a source that does not switch.
        """
        return None

    @model_validator(mode="after")
    def _makes_a_rate(self) -> Self:
        if self.profile is not None:
            check(self.profile)
        return self


def sums_beyond(
    gaps: Draw, until: float, expected: int, cv: float, first: Floats | None = None, most: int | None = None
) -> Floats:
    """Add up gaps, at least up to the first sum that is not below `until`, or up to `most` of them."""
    parts = [] if first is None else [first]
    count = expected + math.ceil(5.0 * cv * math.sqrt(expected)) + 16
    while True:
        parts.append(gaps(count if most is None else min(count, most)))
        sums = np.cumsum(np.concatenate(parts))  # all over again: the same to the last bit however often it grows
        if sums[-1] >= until or (most is not None and len(sums) >= most):
            return sums
        count = len(sums)


def check_periods(process: str, what: str, longer: str, expected: float, until_s: float) -> None:
    """Raise InputError for a source that switches too often to be drawn."""
    if expected > MOST_PERIODS:
        raise InputError(
            f"{process}: about {expected:.3g} {what} in {until_s:g} s, at most {MOST_PERIODS} are allowed",
            hint=f"{longer}, or a shorter workload",
        )
