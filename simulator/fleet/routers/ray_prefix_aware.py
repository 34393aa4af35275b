"""Ray Serve's prefix-aware router for LLMs: where a prompt's beginning went before, while queues are about equal.

After `PrefixCacheAffinityRouter` of Ray 2.50.1 (ray/llm/_internal/serve/request_router/prefix_aware/
prefix_aware_router.py), with its thresholds. Its prefix tree is in characters and, by default, forgets nothing; here it
is in blocks of tokens. Where it does not decide, Ray takes the shorter queue of two replicas drawn at random
(ray/serve/_private/request_router/pow_2_router.py), as it does of several that the tree names.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from annotated_types import Ge, Le, Unit, doc

from simulator.fleet.prompt_table import Remembering, Stretch
from simulator.fleet.router import fewest_and_most, unfinished
from simulator.parameters import CountOrZero

if TYPE_CHECKING:
    from simulator.engine.admission import ReplicaLoad
    from simulator.fleet.router import Replicas
    from simulator.request import ArrivingRequest


@dataclass(slots=True)
class RayPrefixAware(Remembering):
    """Give a request to the replica that has seen most of its prompt, while loads are about equal.

    If no replica has seen `match_rate_threshold` of it, it goes to one of those that have seen the least text so far.
    Loads are unequal if the most and the fewest unfinished requests differ by more than `imbalanced_threshold`: then
    the request goes to the less loaded of two replicas drawn at random. Of several that are named it is the one with
    the fewest unfinished requests, then the first.
    """

    imbalanced_threshold: Annotated[
        CountOrZero, Unit("requests"), doc("largest difference of loads that the router accepts")
    ] = 10
    match_rate_threshold: Annotated[
        float, Ge(0), Le(1), doc("share of the prompt that a replica must have seen, so that the router prefers it")
    ] = 0.1

    def _chosen(self, request: ArrivingRequest, prompt: list[Stretch], replicas: Replicas) -> ReplicaLoad:
        named = self.named(request, prompt, replicas)
        if not named:
            named = [replicas[place] for place in self._draws.several(2, len(replicas))]
        return min(named, key=unfinished)

    def named(self, request: ArrivingRequest, prompt: list[Stretch], replicas: Replicas) -> list[ReplicaLoad]:
        """The replicas that the memory of prompts names for a request with these blocks."""
        fewest, most = fewest_and_most(replicas)
        if most - fewest > self.imbalanced_threshold:
            return []
        depth, numbers = self._table.longest(prompt, replicas.bits)
        if depth * self.block_size < self.match_rate_threshold * request.input_tokens:
            return self._smallest(replicas)
        return replicas.named(numbers) if depth else list(replicas)

    def _smallest(self, replicas: Replicas) -> list[ReplicaLoad]:
        """The replicas of which the router remembers the fewest blocks."""
        sizes = [self._table.size(load.index) for load in replicas]
        least = min(sizes)
        return [load for load, size in zip(replicas, sizes, strict=True) if size == least]
