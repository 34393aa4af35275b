"""The `energy:` of a scenario: what its GPUs draw, roughly."""

from typing import Annotated

from annotated_types import Unit, doc
from pydantic import Field

from scenarios.schema.strict import Strict

Watts = Annotated[float, Field(gt=0, le=1e5)]


class EnergyConfig(Strict):
    """Energy of the GPUs, from their power limit; rough, with an interval. Off unless it is there: `energy: {}`.

    Hosts, links and cooling are not counted.
    """

    tdp_w: Annotated[Watts | None, doc("power limit of a GPU; null: the datasheet's"), Unit("W")] = None
    grams_co2_per_kwh: Annotated[
        Annotated[float, Field(ge=0, le=1e4)] | None, doc("CO2 of the grid; null: not reported"), Unit("g/kWh")
    ] = None
