"""Arrivals at equal distances."""

import math
from typing import Annotated, Literal

import numpy as np
from annotated_types import doc

from scenarios.schema.arrival import Arrival
from simulator.workload import Floats


class Constant(Arrival):
    """Equal gaps of 1 / rate, the first request at 0."""

    process: Annotated[Literal["constant"], doc("equal gaps")]

    @property
    def gap_variation(self) -> float:
        return 0.0

    def points(self, rng: np.random.Generator, until: float, most: int) -> Floats:
        return np.arange(min(math.ceil(until), most), dtype=np.float64)


PROCESS = Constant
