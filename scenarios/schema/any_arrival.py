"""An arrival process of a scenario: any of those of `arrivals/`, a file each."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Union

from pydantic import Field

from scenarios.schema.arrival import Arrival
from scenarios.schema.arrivals.closed_loop import ClosedLoop
from simulator.named_class import constants_in

PROCESSES: tuple[type[Arrival | ClosedLoop], ...] = tuple(constants_in("scenarios.schema.arrivals", "PROCESS").values())
"""The classes of the processes, by the names of their files."""

if TYPE_CHECKING:
    ArrivalConfig = Arrival
    AnyArrival = Arrival | ClosedLoop
else:
    ArrivalConfig = Annotated[
        Union[tuple(each for each in PROCESSES if issubclass(each, Arrival))],  # noqa: UP007 # found at run time
        Field(discriminator="process"),
    ]
    AnyArrival = Annotated[Union[PROCESSES], Field(discriminator="process")]  # noqa: UP007 # found at run time
