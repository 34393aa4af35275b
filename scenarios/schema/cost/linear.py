"""`cost: {kind: linear}`: a few coefficients."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self

from annotated_types import doc
from pydantic import Field, SerializerFunctionWrapHandler, model_serializer, model_validator

from scenarios.schema.cost.priced import host_key
from scenarios.schema.source.hints import refusal
from scenarios.schema.strict import Strict

if TYPE_CHECKING:
    from scenarios.schema.cost.priced import Priced
    from simulator.timing.cost import CostModel

Seconds = Annotated[float, Field(ge=0, le=1e6)]


class LinearCostConfig(Strict):
    """step_s = base_s + per_token_s * scheduled_tokens + per_context_token_s * context_tokens.

    A step that proposes drafts takes `per_drafted_token_s` for each of them more. Where the scenario gives `host`, that
    comes on top.
    """

    elsewhere: ClassVar = staticmethod(host_key)

    kind: Annotated[Literal["linear"], doc("coefficients of your own")]
    base_s: Annotated[Seconds, doc("time of every step")]
    per_token_s: Annotated[Seconds, doc("time for each token computed in the step")]
    per_context_token_s: Annotated[Seconds, doc("time for each KV token of the step's requests, after the step")]
    per_drafted_token_s: Annotated[Seconds, doc("time for each draft proposed, where tokens are drafted")] = 0.0

    @model_serializer(mode="wrap")
    def _as_given(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leave the time of drafts out where there is none."""
        found: dict[str, Any] = dump(self)
        return found if self.per_drafted_token_s else {k: v for k, v in found.items() if k != "per_drafted_token_s"}

    def build(self, scenario: Priced) -> CostModel:
        """The cost model, which asks nothing of the scenario but its `host`."""
        from simulator.timing.host import WithHost
        from simulator.timing.linear_cost import Linear

        linear = Linear(self.base_s, self.per_token_s, self.per_context_token_s, self.per_drafted_token_s)
        return linear if scenario.host is None else WithHost(linear, scenario.resolve_host())

    def takes_host(self, scenario: Priced) -> bool:
        """Return whether the engine's host is added by default: it is in `base_s`."""
        return False

    @model_validator(mode="after")
    def _takes_time(self) -> Self:
        if self.base_s + self.per_token_s + self.per_context_token_s == 0:
            raise refusal("a step would take no time", "at least one of the three must be above 0", key="base_s")
        return self
