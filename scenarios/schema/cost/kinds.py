"""Every kind of `cost:`."""

from collections.abc import Mapping
from typing import Annotated

from pydantic import Discriminator, Field, Tag

from scenarios.schema.cost.auto import AutoCostConfig
from scenarios.schema.cost.linear import LinearCostConfig
from scenarios.schema.cost.own import OwnCostConfig
from scenarios.schema.cost.profile import ProfileCostConfig
from scenarios.schema.cost.roofline import RooflineCostConfig

BuiltInCost = Annotated[
    LinearCostConfig | RooflineCostConfig | ProfileCostConfig | AutoCostConfig,
    Field(discriminator="kind"),
]


def _tag(value: object) -> str:
    kind = value.get("kind") if isinstance(value, Mapping) else getattr(value, "kind", None)
    return "<own>" if isinstance(kind, str) and ".py" in kind else "<built-in>"


Cost = Annotated[
    Annotated[BuiltInCost, Tag("<built-in>")] | Annotated[OwnCostConfig, Tag("<own>")],
    Discriminator(_tag),
]
