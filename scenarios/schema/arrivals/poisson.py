"""The Poisson process."""

from typing import Annotated, Literal

from annotated_types import doc

from scenarios.schema.arrival import Arrival


class Poisson(Arrival):
    """Independent exponential gaps."""

    process: Annotated[Literal["poisson"], doc("independent exponential gaps")]


PROCESS = Poisson
