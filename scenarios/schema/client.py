"""The `client:`, `benchmark:` and `predictor:` of a workload: timeouts, a known client, foreseen lengths, arrivals."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, Self, Union

from annotated_types import Unit, doc
from pydantic import Field, model_validator

from scenarios.schema.arrival import Arrival
from scenarios.schema.arrivals.closed_loop import MOST_USERS, ClosedLoop
from scenarios.schema.base import Strict
from scenarios.schema.distributions import Length, PositiveTime, Time
from scenarios.schema.source.hints import refusal
from simulator.parameters import constants_in
from simulator.workload import MOST_ATTEMPTS

if TYPE_CHECKING:
    from collections.abc import Callable


class ClientConfig(Strict):
    """Timeouts and retries of the clients. None by default: a client waits for ever, and a rejection is final.

    A client that leaves cancels its request, and the server stops working on it. It tries again after a timeout, and
    after a rejection by a full queue (`engine.max_queued_requests`); one that could never fit is given up at once.
    Attempt k + 1 comes backoff_s x backoff_factor ^ (k - 1) later, at most max_backoff_s, less a random share up to
    `jitter`.
    """

    ttft_timeout_s: Annotated[PositiveTime | None, doc("longest wait for a first token; null: no limit")] = None
    timeout_s: Annotated[PositiveTime | None, doc("longest wait for the whole answer; null: no limit")] = None
    cancel: Annotated[bool, doc("the server stops working for a client that has left")] = True
    max_attempts: Annotated[int, Field(ge=1, le=MOST_ATTEMPTS), doc("attempts at a request, the first included")] = 1
    backoff_s: Annotated[Time, doc("time from a failure to the second attempt")] = 1.0
    backoff_factor: Annotated[float, Field(ge=1, le=1000), doc("growth of that time with each attempt")] = 2.0
    max_backoff_s: Annotated[Time | None, doc("largest time between attempts; null: no limit")] = None
    jitter: Annotated[
        float,
        Field(ge=0, le=1),
        doc("largest share by which the time between attempts is shortened at random; 1 is full jitter"),
    ] = 0.0

    @model_validator(mode="after")
    def _does_something(self) -> Self:
        if not self.cancel and self.timeout_s is None and self.ttft_timeout_s is None:
            raise refusal("cancel: false does nothing without a timeout", "give timeout_s", key="cancel")
        return self


# `workload: {benchmark: ...}`: the client of a public benchmark, by the arguments of its command.


class _Client(NamedTuple):
    """Prompts that a client sends for so many users, and the least share of a length that it draws."""

    prompts: Callable[[int], int]
    least: float


CLIENTS: Mapping[str, _Client] = {
    "inferencex": _Client(lambda users: 10 * users, 0.8),
    "vllm_bench": _Client(lambda users: 1000, 1.0),
}
"""SemiAnalysisAI/InferenceX (benchmarks/benchmark_lib.sh) asks for ten prompts a user and for lengths of 0.8 to 1.0 of
those named. `vllm bench serve --dataset-name random` sends 1,000 prompts of the lengths that are named."""


class BenchmarkConfig(Strict):
    """`max_concurrency` users that ask again as soon as they are answered, the first time all at once.

    `ignore_eos` holds, as in both clients: every answer has the length that was drawn.
    """

    client: Annotated[Literal["inferencex", "vllm_bench"], doc("benchmark whose client is meant")]
    max_concurrency: Annotated[int, Field(ge=1, le=MOST_USERS), doc("number of users"), Unit("users")]
    input_len: Annotated[Length, doc("length of prompts that is named"), Unit("tokens")]
    output_len: Annotated[Length, doc("length of answers that is named"), Unit("tokens")]
    num_prompts: Annotated[
        int | None,
        Field(ge=1),
        doc("requests in all; null: 10 a user (inferencex), 1,000 (vllm_bench)"),
        Unit("requests"),
    ] = None

    @property
    def requests(self) -> int:
        """Requests in all."""
        return self.num_prompts or CLIENTS[self.client].prompts(self.max_concurrency)

    def users(self) -> ClosedLoop:
        """The users, as `arrival` would say them."""
        return ClosedLoop(process="closed_loop", concurrency=self.max_concurrency)

    def class_keys(self) -> dict[str, Any]:
        """The keys of the one class of its requests."""
        return {"name": self.client, "input": self._lengths(self.input_len), "output": self._lengths(self.output_len)}

    def _lengths(self, named: int) -> dict[str, Any]:
        least = max(1, math.ceil(CLIENTS[self.client].least * named))
        return {"dist": "uniform", "min": least, "max": named} if least < named else {"dist": "fixed", "value": named}


# The `predictor:` of a workload: what a server is told about how long answers will be.


class NoPredictor(Strict):
    """No predictions, not even those of a trace: orders that need one take `max_tokens`."""

    kind: Annotated[Literal["none"], doc("no predictions")]


class OraclePredictor(Strict):
    """The true output length."""

    kind: Annotated[Literal["oracle"], doc("true output length")]


class NoisyPredictor(Strict):
    """The true output length times a lognormal factor of mean 1 and coefficient of variation `cv`."""

    kind: Annotated[Literal["noisy"], doc("true output length times a random factor")]
    cv: Annotated[float, Field(gt=0, le=100), doc("coefficient of variation of the factor")]


class ClassMeanPredictor(Strict):
    """The mean output length of the request's class."""

    kind: Annotated[Literal["class_mean"], doc("mean output length of the class")]


Predictor = Annotated[NoPredictor | OraclePredictor | NoisyPredictor | ClassMeanPredictor, Field(discriminator="kind")]


# An arrival process of a scenario: any of those of `arrivals/`, a file each.

PROCESSES: tuple[type[Arrival | ClosedLoop], ...] = tuple(constants_in("scenarios.schema.arrivals", "PROCESS").values())
"""The classes of the processes, by the names of their files."""

if TYPE_CHECKING:
    ArrivalConfig = Arrival
    AnyArrival = Arrival | ClosedLoop
else:
    ArrivalConfig = Annotated[
        Union[tuple(each for each in PROCESSES if issubclass(each, Arrival))],  # noqa: UP007 # found at run time
        Field(discriminator="process"),
    ]
    AnyArrival = Annotated[Union[PROCESSES], Field(discriminator="process")]  # noqa: UP007 # found at run time
