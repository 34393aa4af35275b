"""Gaps of a Weibull distribution."""

import math
from typing import Annotated, Literal

import numpy as np
from annotated_types import doc
from pydantic import Field

from scenarios.schema.arrival import Arrival, Draw
from simulator.workload import Floats


class Weibull(Arrival):
    """Weibull-distributed gaps with coefficient of variation `cv`."""

    process: Annotated[Literal["weibull"], doc("Weibull-distributed gaps")]
    cv: Annotated[float, Field(ge=0.01, le=100), doc("coefficient of variation of the gaps; 1 is Poisson")]

    @property
    def gap_variation(self) -> float:
        return self.cv

    def gaps(self, rng: np.random.Generator) -> tuple[Floats, Draw]:
        power = 1.0 / weibull_shape(self.cv)
        scale = 1.0 / math.gamma(1.0 + power)
        first = rng.random(1) * scale * rng.gamma(1.0 + power, 1.0, 1) ** power
        return first, lambda count: rng.standard_exponential(count) ** power * scale


def weibull_shape(cv: float) -> float:
    """The Weibull shape k with this coefficient of variation: cv^2 = G(1 + 2/k) / G(1 + 1/k)^2 - 1, by bisection."""
    target = math.log1p(cv * cv)
    low, high = 0.05, 1000.0  # cv falls with the shape: far above 100 at one end, below 0.01 at the other
    for _ in range(100):
        middle = math.sqrt(low * high)
        above = math.lgamma(1 + 2 / middle) - 2 * math.lgamma(1 + 1 / middle) > target
        low, high = (middle, high) if above else (low, middle)
    return math.sqrt(low * high)


PROCESS = Weibull
