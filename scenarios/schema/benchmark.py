"""`workload: {benchmark: ...}`: the client of a public benchmark, by the arguments of its command."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

from annotated_types import Unit, doc
from pydantic import Field

from scenarios.schema.arrivals.closed_loop import MOST_USERS, ClosedLoop
from scenarios.schema.lengths import Length
from scenarios.schema.strict import Strict

if TYPE_CHECKING:
    from collections.abc import Callable


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
