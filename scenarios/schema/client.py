"""The `client:` of a workload: timeouts and retries."""

from typing import Annotated, Self

from annotated_types import doc
from pydantic import Field, model_validator

from scenarios.schema.durations import PositiveTime, Time
from scenarios.schema.source.hints import refusal
from scenarios.schema.strict import Strict
from simulator.client import MOST_ATTEMPTS


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
