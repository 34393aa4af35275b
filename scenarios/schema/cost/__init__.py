"""The `cost:` of a scenario: where step times come from. A kind is one file here and its place in the union `Cost`.

The config of a kind has `kind`, its other keys, and `build(scenario)`, which makes the cost model of it.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from scenarios.schema.cost.linear import LinearCostConfig
from scenarios.schema.cost.profile import ProfileCostConfig
from scenarios.schema.cost.roofline import RooflineCostConfig

__all__ = ["Cost", "LinearCostConfig", "ProfileCostConfig", "RooflineCostConfig"]

Cost = Annotated[
    LinearCostConfig | RooflineCostConfig | ProfileCostConfig,
    Field(discriminator="kind"),
]
