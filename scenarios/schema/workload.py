"""What a scenario may say of a generated workload: its classes, when their requests arrive and how long they are.

How rates and shares relate. A class either has its own `arrival`: then its rate is the class's own, and the
workload is the superposition of independent processes. Or `arrival` stands once at the workload: then every class
without one of its own takes a `share` of that stream, each arrival being dealt to a class by an independent draw
(shares are weights; they need not add up to 1). `requests` stops after that many arrivals over all classes,
`duration_s` at that time. Time 0 is the start of the generator, not the first arrival.

The client's cap on a request's output, `max_tokens`, is the first of: the class's `max_tokens`, the workload's, the
largest length the class's output distribution can give, the largest it gave. An output drawn above a cap is cut
there, as a server does it.
"""

from __future__ import annotations

import itertools
import math
from typing import Annotated, Literal, Self

from annotated_types import Unit, doc
from pydantic import Field, model_validator

from scenarios.schema.client import ClientConfig
from scenarios.schema.lengths import (
    Empirical,
    Fixed,
    Length,
    LengthConfig,
    LogNormal,
    LogNormalPareto,
    Normal,
    Uniform,
)
from scenarios.schema.predictor import Predictor
from scenarios.schema.sessions import ClosedLoop, SessionConfig
from scenarios.schema.source.hints import refusal
from scenarios.schema.strict import Strict

__all__ = [
    "ArrivalConfig",
    "ClassConfig",
    "ClosedLoop",
    "Constant",
    "Empirical",
    "Fixed",
    "Gamma",
    "GeneratedWorkload",
    "LengthConfig",
    "LogNormal",
    "LogNormalPareto",
    "Normal",
    "OnOff",
    "Poisson",
    "Uniform",
    "Weibull",
]

MOST_REQUESTS = 50_000_000  # a workload is held in memory: some 50 bytes a request here, more in the simulator
LEAST_FACTOR = 1e-6
Positive = Annotated[float, Field(gt=0)]
Seconds = Annotated[float, Field(ge=1e-6, le=1e9)]
Rate = Annotated[float, Field(ge=1e-6, le=1e9)]
Point = Annotated[
    tuple[Annotated[float, Field(ge=0, le=1e9)], Annotated[float, Field(ge=0, le=1e6)]], Field(strict=False)
]


class _Arrival(Strict):
    """`rate` in requests per second, times the factor that `profile` gives for the moment.

    `profile` is a list of [t_s, factor]: linear between the points, constant before the first and after the last;
    two points at the same time are a jump. The expected number of arrivals up to t is rate x the integral of the
    factor, exactly: the process runs on a clock that the profile speeds up and slows down (time rescaling).
    """

    rate: Annotated[Rate, doc("mean rate"), Unit("requests/s")]
    profile: Annotated[
        Annotated[tuple[Point, ...], Field(strict=False, min_length=1)] | None,
        doc("points [time in s, factor on the rate], linear between them; null: constant"),
    ] = None

    @property
    def mean_rate(self) -> float:
        """Long-run requests per second at factor 1."""
        return self.rate

    @property
    def ends(self) -> bool:
        """Whether the profile ends at 0, so that only finitely many requests arrive."""
        return self.profile is not None and self.profile[-1][1] == 0

    @model_validator(mode="after")
    def _profile_in_order(self) -> Self:
        points = self.profile or ()
        for (before, _), (after, _) in itertools.pairwise(points):
            if after < before:
                raise ValueError(f"profile: times must not fall, found {before:g} before {after:g}")
        if any(0 < factor < LEAST_FACTOR for _, factor in points):
            raise ValueError(f"profile: a factor must be 0 or at least {LEAST_FACTOR:g}")
        if points and not any(factor > 0 for _, factor in points):
            raise ValueError("profile: at least one factor must be above 0")
        return self


class Poisson(_Arrival):
    """Independent exponential gaps."""

    process: Annotated[Literal["poisson"], doc("independent exponential gaps")]


class Constant(_Arrival):
    """Equal gaps of 1 / rate, the first request at 0."""

    process: Annotated[Literal["constant"], doc("equal gaps")]


class Gamma(_Arrival):
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
    def variation(self) -> float:
        """The coefficient of variation, whichever way it was given."""
        if self.burstiness is not None:
            return 1.0 / math.sqrt(self.burstiness)
        assert self.cv is not None, "the validator let a gamma without cv pass"
        return self.cv

    @model_validator(mode="after")
    def _one_of_two(self) -> Self:
        if (self.cv is None) == (self.burstiness is None):
            raise ValueError("give exactly one of cv and burstiness (cv = 1 / sqrt(burstiness))")
        return self


class Weibull(_Arrival):
    """Weibull-distributed gaps with coefficient of variation `cv`."""

    process: Annotated[Literal["weibull"], doc("Weibull-distributed gaps")]
    cv: Annotated[float, Field(ge=0.01, le=100), doc("coefficient of variation of the gaps; 1 is Poisson")]


class OnOff(_Arrival):
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

    @model_validator(mode="after")
    def _periods_hold_requests(self) -> Self:
        if self.rate * self.on_s < 0.01:
            raise ValueError(
                f"rate x on_s = {self.rate * self.on_s:g} requests in an on period; with less than 0.01 the process"
                f" cannot be told from poisson with rate {self.mean_rate:g}"
            )
        return self


ArrivalConfig = Annotated[Poisson | Constant | Gamma | Weibull | OnOff, Field(discriminator="process")]
AnyArrival = Annotated[Poisson | Constant | Gamma | Weibull | OnOff | ClosedLoop, Field(discriminator="process")]


class ClassConfig(Strict):
    """Requests of one kind, with an `arrival` process of its own or a `share` of the workload's."""

    name: Annotated[str, Field(min_length=1), doc("name of the class, in results and in `engine.class_weights`")]
    share: Annotated[Positive | None, doc("weight in the workload's arrivals; null: 1")] = None
    arrival: Annotated[AnyArrival | None, doc("arrivals of the class's own; null: a share of the workload's")] = None
    input: Annotated[LengthConfig, doc("prompt lengths"), Unit("tokens")]
    output: Annotated[LengthConfig, doc("output lengths"), Unit("tokens")]
    priority: Annotated[int, Field(ge=-(2**31), le=2**31 - 1), doc("smaller is served first")] = 0
    max_tokens: Annotated[Length | None, doc("cap on an output; null: the workload's, or the largest output")] = None
    session: Annotated[SessionConfig | None, doc("what each arrival begins; null: a single request")] = None
    client: Annotated[ClientConfig | None, doc("timeouts and retries; null: the workload's")] = None


class GeneratedWorkload(Strict):
    """A workload that is drawn rather than read. Exactly one of `requests` and `duration_s`."""

    requests: Annotated[
        Annotated[int, Field(ge=1, le=MOST_REQUESTS)] | None, doc("arrivals to generate"), Unit("requests")
    ] = None
    duration_s: Annotated[Seconds | None, doc("time over which requests arrive; give this or `requests`")] = None
    arrival: Annotated[AnyArrival | None, doc("arrivals that classes without their own share")] = None
    classes: Annotated[
        tuple[ClassConfig, ...], Field(strict=False, min_length=1), doc("kinds of requests, one mapping each")
    ]
    max_tokens: Annotated[Length | None, doc("cap on an output where a class has none")] = None
    client: Annotated[ClientConfig | None, doc("timeouts and retries where a class has none; null: none")] = None
    predictor: Annotated[Predictor | None, doc("predictions of output lengths; null: none")] = None

    @model_validator(mode="after")
    def _hangs_together(self) -> Self:
        if (self.requests is None) == (self.duration_s is None):
            raise ValueError("give exactly one of requests and duration_s")
        names = [entry.name for entry in self.classes]
        for index, name in enumerate(names):
            if name in names[:index]:
                raise refusal(f"two classes are called {name!r}", "names must differ", key=f"classes.{index}.name")
        self._check_shares()
        own = [entry.arrival for entry in self.classes if entry.arrival is not None]
        processes = own if self.arrival is None else [*own, self.arrival]
        loops = [process for process in processes if isinstance(process, ClosedLoop)]
        if self.requests is not None and loops and len(processes) > 1:
            raise refusal(
                "requests: how many of them a closed loop issues beside other arrivals depends on the policy",
                "give duration_s",
                key="requests",
            )
        endless = [process for process in processes if isinstance(process, ClosedLoop) or not process.ends]
        if self.requests is not None and not endless:
            raise ValueError("requests: every profile ends at 0, the number may never be reached; give duration_s")
        if self.requests is None:
            self._check_caps()
        return self

    def _check_caps(self) -> None:
        """A closed loop without a number of requests draws them as it goes: their cap must be known beforehand."""
        for index, entry in enumerate(self.classes):
            if isinstance(entry.arrival or self.arrival, ClosedLoop) and (
                entry.max_tokens is None and self.max_tokens is None and entry.output.largest is None
            ):
                raise refusal(
                    "a closed loop with duration_s must know how long an answer can be",
                    "give output: {max: ...} or max_tokens",
                    key=f"classes.{index}.output",
                )

    def _check_shares(self) -> None:
        for index, entry in enumerate(self.classes):
            if entry.arrival is None and self.arrival is None:
                raise refusal(
                    f"class {entry.name!r} has no arrival, and the workload has none to share",
                    "give arrival: {process: ..., rate: ...} to the class, or to the workload for all its classes",
                    key=f"classes.{index}",
                )
            if entry.arrival is not None and entry.share not in (None, 1.0):
                raise refusal(
                    f"a share of {entry.share:g} would do nothing: class {entry.name!r} has its own arrival, and all of"
                    " its rate",
                    "change the rate, or put arrival at the workload for its classes to share",
                    key=f"classes.{index}.share",
                )
        if self.arrival is not None and all(entry.arrival is not None for entry in self.classes):
            raise ValueError("arrival: every class has its own, none takes from the workload's")
