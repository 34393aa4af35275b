"""A Poisson process that pauses."""

import math
from typing import Annotated, Literal, Self

import numpy as np
from annotated_types import doc
from pydantic import Field, model_validator

from scenarios.schema.arrival import Arrival, Stream, check_periods, sums_beyond
from simulator.workload import Floats

Seconds = Annotated[float, Field(ge=1e-6, le=1e9)]


class OnOff(Arrival):
    """Poisson at `rate` while on, silence while off; both periods exponential with means `on_s` and `off_s`.

    The long-run rate is rate x on_s / (on_s + off_s). The process is met in its steady state: on at time 0 with
    probability on_s / (on_s + off_s). Its clock is real time, so a `profile` changes the rate and not the periods.
    """

    process: Annotated[Literal["onoff"], doc("Poisson while on, silence while off")]
    on_s: Annotated[Seconds, doc("mean of the exponential on periods")]
    off_s: Annotated[Seconds, doc("mean of the exponential off periods")]

    @property
    def mean_rate(self) -> float:
        return self.rate * self.on_s / (self.on_s + self.off_s)

    @property
    def variation(self) -> float:
        # index of dispersion of an interrupted Poisson process in the limit: 1 + 2 rate on off^2 / (on + off)^2
        return math.sqrt(1 + 2 * self.rate * self.on_s * (self.off_s / (self.on_s + self.off_s)) ** 2)

    def switches(self, stream: Stream, until_s: float) -> tuple[Floats, Floats]:
        rng = stream("periods")
        expected = 2 * until_s / (self.on_s + self.off_s)
        check_periods("onoff", "on and off periods", "longer on_s and off_s", expected, until_s)
        starts_on = bool(rng.random() < self.on_s / (self.on_s + self.off_s))
        means = np.array([self.on_s, self.off_s] if starts_on else [self.off_s, self.on_s])

        def periods(count: int) -> Floats:
            drawn: Floats = rng.standard_exponential((count, 2)) * means
            return drawn.ravel()

        switch_s = sums_beyond(periods, until_s, math.ceil(expected / 2), 1.0)
        return switch_s, np.where(np.arange(len(switch_s)) % 2 == 0, float(starts_on), float(not starts_on))

    @model_validator(mode="after")
    def _periods_hold_requests(self) -> Self:
        if self.rate * self.on_s < 0.01:
            raise ValueError(
                f"rate x on_s = {self.rate * self.on_s:g} requests in an on period; with less than 0.01 the process"
                f" cannot be told from poisson with rate {self.mean_rate:g}"
            )
        return self


PROCESS = OnOff
