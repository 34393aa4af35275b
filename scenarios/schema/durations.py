"""Random times of a scenario, such as the pause before a next question: a number, or a distribution."""

import math
from collections.abc import Mapping
from typing import Annotated, Literal, Self

from annotated_types import doc
from pydantic import Discriminator, Field, Tag, model_validator

from scenarios import normal
from scenarios.schema.strict import Strict

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
        return math.log(self.p99_s / self.median_s) / normal.quantile(0.99)

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
