"""`cost: {kind: linear}`: three coefficients."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, ClassVar, Literal, Self

from annotated_types import doc
from pydantic import Field, model_validator

from scenarios.schema.cost.priced import host_key
from scenarios.schema.source.hints import refusal
from scenarios.schema.strict import Strict

if TYPE_CHECKING:
    from scenarios.schema.cost.priced import Priced
    from simulator.timing.cost import CostModel

Seconds = Annotated[float, Field(ge=0, le=1e6)]


class LinearCostConfig(Strict):
    """step_s = base_s + per_token_s * scheduled_tokens + per_context_token_s * context_tokens.

    Where the scenario gives `host`, that comes on top.
    """

    elsewhere: ClassVar = staticmethod(host_key)

    kind: Annotated[Literal["linear"], doc("three coefficients")]
    base_s: Annotated[Seconds, doc("time of every step")]
    per_token_s: Annotated[Seconds, doc("time for each token computed in the step")]
    per_context_token_s: Annotated[Seconds, doc("time for each KV token of the step's requests, after the step")]

    def build(self, scenario: Priced) -> CostModel:
        """The cost model, which asks nothing of the scenario but its `host`."""
        from simulator.timing.host import WithHost
        from simulator.timing.linear_cost import Linear

        linear = Linear(self.base_s, self.per_token_s, self.per_context_token_s)
        return linear if scenario.host is None else WithHost(linear, scenario.resolve_host())

    def takes_host(self, scenario: Priced) -> bool:
        """Return whether the engine's host is added by default: it is in `base_s`."""
        return False

    @model_validator(mode="after")
    def _takes_time(self) -> Self:
        if self.base_s + self.per_token_s + self.per_context_token_s == 0:
            raise refusal("a step would take no time", "at least one of the three must be above 0", key="base_s")
        return self
