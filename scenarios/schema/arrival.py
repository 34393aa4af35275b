"""The base of every arrival process: its rate, how the rate changes with time, and how arrivals are drawn.

A process is a file of `arrivals/`. Each is drawn in its steady state, as if it had always run before time 0 (constant
apart, whose first request arrives at 0). So the expected number of arrivals up to t is the integral of the rate, from
the start.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Self

import numpy as np
from annotated_types import Unit, doc
from pydantic import Field, model_validator

from scenarios.schema import rate_profile
from scenarios.schema.rate_profile import RateProfile
from scenarios.schema.strict import Strict
from simulator.errors import InputError
from simulator.workload import Floats

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
        if self.profile is None or rate_profile.period_of(self.profile) is not None:
            return False
        return rate_profile.points_of(self.profile)[-1][1] == 0

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
            rate_profile.check(self.profile)
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
