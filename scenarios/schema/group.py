"""The `fleet:` of a scenario: groups of replicas that differ."""

from typing import Annotated, Any, Literal, Self

from annotated_types import doc
from pydantic import Field, model_validator

from scenarios.schema.allowed import model_schema
from scenarios.schema.autoscaling import AutoscalingConfig
from scenarios.schema.source.hints import refusal
from scenarios.schema.strict import JsonSchema, Strict


class GroupConfig(Strict):
    """Replicas of one kind. What a group leaves out is as at the scenario's top level; of `hardware` and `engine`, key
    by key, but for keys of the engine that another policy than the scenario's does not take."""

    name: Annotated[
        str,
        Field(max_length=60, pattern=r"^[^\W_][\w.+-]*$", description="at most 60 letters, digits and _ . + -"),
        doc("name of the group, in reports"),
    ]
    replicas: Annotated[int, Field(ge=1, le=100_000), doc("servers of the group")] = 1
    model: Annotated[str | dict[str, Any] | None, JsonSchema(model_schema), doc("its model")] = None
    hardware: Annotated[dict[str, Any] | None, doc("keys of `hardware` that differ")] = None
    cost: Annotated[dict[str, Any] | None, doc("its `cost`, which replaces the scenario's")] = None
    host: Annotated[dict[str, Any] | None, doc("its `host`, which replaces the scenario's")] = None
    engine: Annotated[dict[str, Any] | None, doc("keys of `engine` that differ")] = None
    role: Annotated[
        Literal["both", "prefill", "decode"],
        doc("part of each request that the group serves; KV moves from prefill to decode"),
    ] = "both"
    autoscaling: Annotated[AutoscalingConfig | None, doc("rule for the number of its replicas; null: fixed")] = None

    @property
    def initial_replicas(self) -> int:
        """Servers at the start: `replicas`, where that is given or nothing scales."""
        scales = self.autoscaling is not None and "replicas" not in self.model_fields_set
        return self.autoscaling.min_replicas if self.autoscaling is not None and scales else self.replicas

    @property
    def scales(self) -> AutoscalingConfig | None:
        """The rule, where it leaves a choice."""
        rule = self.autoscaling
        return None if rule is None or rule.min_replicas == rule.max_replicas else rule

    @model_validator(mode="after")
    def _within_limits(self) -> Self:
        rule = self.autoscaling
        if rule is not None and not rule.min_replicas <= self.initial_replicas <= rule.max_replicas:
            limits = f"autoscaling's {rule.min_replicas} to {rule.max_replicas}"
            raise refusal(f"{self.initial_replicas} is outside {limits}", "leave it out: min_replicas", key="replicas")
        return self
