"""The `cost:` of a scenario: where step times come from."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from scenarios.schema.source.hints import did_you_mean, refusal
from scenarios.schema.strict import Strict

Seconds = Annotated[float, Field(ge=0, le=1e6)]


class LinearCostConfig(Strict):
    """step_s = base_s + per_token_s * scheduled_tokens + per_context_token_s * context_tokens."""

    kind: Literal["linear"]
    base_s: Seconds
    per_token_s: Seconds
    per_context_token_s: Seconds

    @model_validator(mode="after")
    def _takes_time(self) -> Self:
        if self.base_s + self.per_token_s + self.per_context_token_s == 0:
            raise refusal("a step would take no time", "at least one of the three must be above 0", key="base_s")
        return self


class RooflineCostConfig(Strict):
    """Step times from the dimensions of model and GPU."""

    kind: Literal["roofline"]


def _shipped(name: str) -> str:
    from scenarios.build.profiles import shipped_profiles

    names = tuple(shipped_profiles())
    if name not in names:
        raise refusal(f"no profile called {name!r} comes with batchlab", did_you_mean(name, names))
    return name


class ProfileCostConfig(Strict):
    """Step times from measured kernels: a shipped profile by `name`, a file by `path`, or what fits the scenario.

    The other keys are `simulator.timing.profile.Options`; `max_capture_tokens` null is vLLM's default, the smaller of
    512 and twice max_num_seqs.
    """

    kind: Literal["profile"]
    name: Annotated[str, AfterValidator(_shipped)] | None = None
    path: Annotated[str, Field(min_length=1, description="the path of a profile")] | None = None
    host_s: Seconds | None = None
    host_per_seq_s: Seconds | None = None
    cuda_graphs: bool = True
    max_capture_tokens: Annotated[int, Field(ge=1, le=10**6)] | None = None
    skew: bool = True
    all_reduce: bool = True

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        if self.name is not None and self.path is not None:
            raise refusal("a profile has either a name or a path", "keep one of the two", key="path")
        return self


Cost = Annotated[LinearCostConfig | RooflineCostConfig | ProfileCostConfig, Field(discriminator="kind")]
