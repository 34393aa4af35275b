"""Users that wait for their answers: arrivals that depend on the server, so none are drawn beforehand."""

from typing import Annotated, Literal

from annotated_types import Unit, doc
from pydantic import Field

from scenarios.schema.base import Strict
from scenarios.schema.distributions import TimeConfig

MOST_USERS = 1_000_000


class ClosedLoop(Strict):
    """`concurrency` users, each of whom asks again when answered, after a think time; the first time after one, too.

    They take their requests, or whole sessions, from one pool in order: whoever is free takes the next. So a run of R
    `requests` issues the same R under every policy, at other times. There is no rate: the faster the server, the more
    it is asked. With N users, a mean answer of R and a mean think time of Z, the throughput is N / (R + Z).
    """

    process: Annotated[Literal["closed_loop"], doc("users that wait for answers")]
    concurrency: Annotated[int, Field(ge=1, le=MOST_USERS), doc("number of users"), Unit("users")]
    think_time_s: Annotated[TimeConfig, doc("time that a user waits before each request, or before each session")] = 0.0


PROCESS = ClosedLoop
