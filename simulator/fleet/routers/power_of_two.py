"""The less loaded of two replicas drawn at random.

M. Mitzenmacher, The Power of Two Choices in Randomized Load Balancing, IEEE Transactions on Parallel and Distributed
Systems 12 (2001), 1094-1104. SGLang's router has it as `power_of_two`, without the number of choices (sglang-router
0.3.2, sgl-model-gateway/src/policies/power_of_two.rs), and it is Ray Serve's own (PowerOfTwoChoicesRequestRouter in
python/ray/serve/_private/request_router/pow_2_router.py, 04287e4b): both draw two in random order, two replicas alike.
Ray keeps a replica's queue length for some seconds and asks again before it sends to one that was full: not modelled.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from annotated_types import Ge, Le, doc

from simulator.fleet.router import Drawing, unfinished
from simulator.parameters import check_parameters

if TYPE_CHECKING:
    from simulator.engine.admission import ReplicaLoad
    from simulator.fleet.router import Replicas
    from simulator.request import ArrivingRequest


@dataclass(slots=True)
class PowerOfTwo(Drawing):
    """Draw `choices` different replicas, and give the request to the one with the fewest unfinished requests.

    Of equals it is the one drawn first.
    """

    choices: Annotated[int, Ge(1), Le(1000), doc("replicas drawn for each request")] = 2

    def __post_init__(self) -> None:
        check_parameters(self)

    def choose(self, request: ArrivingRequest, replicas: Replicas) -> ReplicaLoad:
        drawn = [replicas[place] for place in self._draws.several(self.choices, len(replicas))]
        return min(drawn, key=unfinished)
