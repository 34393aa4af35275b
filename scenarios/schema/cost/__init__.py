"""The `cost:` of a scenario: where step times come from. A kind is one file here and its place in a union below.

The config of a kind has `kind`, its other keys, and `build(scenario)`, which makes the cost model of it.
"""

from collections.abc import Mapping
from typing import Annotated

from pydantic import Discriminator, Field, Tag

from scenarios.schema.cost.auto import AutoCostConfig
from scenarios.schema.cost.linear import LinearCostConfig
from scenarios.schema.cost.own import OwnCostConfig
from scenarios.schema.cost.profile import ProfileCostConfig
from scenarios.schema.cost.roofline import RooflineCostConfig

__all__ = ["AutoCostConfig", "Cost", "LinearCostConfig", "OwnCostConfig", "ProfileCostConfig", "RooflineCostConfig"]

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
