"""Gaps of a gamma distribution."""

import math
from typing import Annotated, Literal, Self

import numpy as np
from annotated_types import doc
from pydantic import Field, model_validator

from scenarios.schema.arrival import Arrival, Draw
from simulator.workload import Floats


class Gamma(Arrival):
    """Gamma-distributed gaps with coefficient of variation `cv`: 1 is Poisson, above it the arrivals are bursty.

    `burstiness` is vLLM's word, the gamma's shape: cv = 1 / sqrt(burstiness). Give one of the two.
    """

    process: Annotated[Literal["gamma"], doc("gamma-distributed gaps")]
    cv: Annotated[
        Annotated[float, Field(ge=0.01, le=100)] | None, doc("coefficient of variation of the gaps; 1 is Poisson")
    ] = None
    burstiness: Annotated[
        Annotated[float, Field(ge=1e-4, le=1e4)] | None, doc("vLLM's word for 1 / cv^2; give one of the two")
    ] = None

    @property
    def gap_variation(self) -> float:
        if self.burstiness is not None:
            return 1.0 / math.sqrt(self.burstiness)
        assert self.cv is not None, "the validator let a gamma without cv pass"
        return self.cv

    def gaps(self, rng: np.random.Generator) -> tuple[Floats, Draw]:
        shape = self.gap_variation**-2
        first = rng.random(1) * rng.gamma(shape + 1.0, 1.0 / shape, 1)
        return first, lambda count: rng.gamma(shape, 1.0 / shape, count)

    @model_validator(mode="after")
    def _one_of_two(self) -> Self:
        if (self.cv is None) == (self.burstiness is None):
            raise ValueError("give exactly one of cv and burstiness (cv = 1 / sqrt(burstiness))")
        return self


PROCESS = Gamma
