"""What every arrival process with a rate has: the rate, and how it changes with time."""

from __future__ import annotations

from typing import Annotated, Self

from annotated_types import Unit, doc
from pydantic import Field, model_validator

from scenarios.schema import rate_profile
from scenarios.schema.rate_profile import RateProfile
from scenarios.schema.strict import Strict

Rate = Annotated[float, Field(ge=1e-6, le=1e9)]


class MeanRate(Strict):
    """Classes that have arrivals of their own, all made denser or thinner by one factor.

    `rate` is the mean of all of them together up to the workload's end, as the processes have it in expectation.
    Profiles keep their times.
    """

    rate: Annotated[Rate, doc("mean rate of all classes together, which keep their proportions"), Unit("requests/s")]


class Arrival(Strict):
    """`rate` in requests per second, times the factor that `profile` gives for the moment.

    `profile` is a list of [t_s, factor]: linear between the points, constant before the first and after the last;
    two points at the same time are a jump. Or it is a shape by its name: `{kind: ramp, ...}`, `{kind: diurnal, ...}`,
    `{kind: spike, ...}`. The expected number of arrivals up to t is rate x the integral of the factor, exactly: the
    process runs on a clock that the profile speeds up and slows down (time rescaling).
    """

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
    def ends(self) -> bool:
        """Whether the profile ends at 0, so that only finitely many requests arrive."""
        if self.profile is None or rate_profile.period_of(self.profile) is not None:
            return False
        return rate_profile.points_of(self.profile)[-1][1] == 0

    @model_validator(mode="after")
    def _makes_a_rate(self) -> Self:
        if self.profile is not None:
            rate_profile.check(self.profile)
        return self
