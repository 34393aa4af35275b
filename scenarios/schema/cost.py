"""The `cost:` of a scenario: where step times come from."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from annotated_types import doc
from pydantic import AfterValidator, Field, model_validator

from scenarios.schema.source.hints import did_you_mean, refusal
from scenarios.schema.strict import Strict

Seconds = Annotated[float, Field(ge=0, le=1e6)]


class LinearCostConfig(Strict):
    """step_s = base_s + per_token_s * scheduled_tokens + per_context_token_s * context_tokens."""

    kind: Annotated[Literal["linear"], doc("three coefficients")]
    base_s: Annotated[Seconds, doc("time of every step")]
    per_token_s: Annotated[Seconds, doc("time for each token computed in the step")]
    per_context_token_s: Annotated[Seconds, doc("time for each KV token of the step's requests, after the step")]

    @model_validator(mode="after")
    def _takes_time(self) -> Self:
        if self.base_s + self.per_token_s + self.per_context_token_s == 0:
            raise refusal("a step would take no time", "at least one of the three must be above 0", key="base_s")
        return self


class RooflineCostConfig(Strict):
    """Step times from the dimensions of model and GPU."""

    kind: Annotated[Literal["roofline"], doc("figures of model and GPU")]


def _shipped(name: str) -> str:
    from scenarios.build.profiles import shipped_profiles

    names = tuple(shipped_profiles())
    if name not in names:
        raise refusal(f"no profile called {name!r} comes with batchlab", did_you_mean(name, names))
    return name


class ProfileCostConfig(Strict):
    """Step times from measured kernels: a shipped profile by `name`, a file by `path`, or what fits the scenario."""

    kind: Annotated[Literal["profile"], doc("measured kernels")]
    name: Annotated[
        Annotated[str, AfterValidator(_shipped)] | None,
        doc("a profile of `batchlab list profiles`; null, without a path: the one that fits model and hardware"),
    ] = None
    path: Annotated[
        Annotated[str, Field(min_length=1, description="the path of a profile")] | None, doc("a profile of your own")
    ] = None
    host_s: Annotated[Seconds | None, doc("the host's work on a step; null: the profile's")] = None
    host_per_seq_s: Annotated[
        Seconds | None, doc("the host's work for each request of a step; null: the profile's")
    ] = None
    cuda_graphs: Annotated[bool, doc("small steps run as CUDA graphs, padded to a captured size")] = True
    max_capture_tokens: Annotated[
        Annotated[int, Field(ge=1, le=10**6)] | None,
        doc("largest captured size; null: vLLM's, the smaller of 512 and twice max_num_seqs"),
    ] = None
    skew: Annotated[bool, doc("decodes of unequal contexts cost more than equal ones")] = True
    all_reduce: Annotated[bool, doc("all-reduces of tensor parallelism cost time")] = True

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        if self.name is not None and self.path is not None:
            raise refusal("a profile has either a name or a path", "keep one of the two", key="path")
        return self


Cost = Annotated[LinearCostConfig | RooflineCostConfig | ProfileCostConfig, Field(discriminator="kind")]
