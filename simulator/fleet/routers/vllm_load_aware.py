"""The load-aware router of vLLM's production stack: the named share of the prompt against the load beside the mean.

The rule is that of its `LoadAwareRouter` (`loadaware`, merged by its pull request 1035), with the look-up of LMCache's
controller (`simulator/fleet/production_stack.py` says where they are). As that names one replica a chunk, others that
have it score as if they had not.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from annotated_types import doc

from simulator.fleet.production_stack import LookingUp
from simulator.parameters import Factor

if TYPE_CHECKING:
    from simulator.engine.admission import ReplicaLoad
    from simulator.fleet.router import Replicas
    from simulator.request import ArrivingRequest


@dataclass(slots=True)
class VllmLoadAware(LookingUp):
    """Give a request to the replica of the highest score, the first of equals.

    score = tokens up to the last chunk that names it / prompt - beta x (unfinished - mean) / max(1, mean). Where no
    replica is named, a request goes by its session, or to the one that was sent the fewest in the last
    `stats_window_s`.
    """

    beta: Annotated[Factor, doc("prompts' worth of cached tokens that a load of twice the mean counts against")] = 1.0

    def _by_prompt(self, ends: Mapping[int, int], request: ArrivingRequest, replicas: Replicas) -> ReplicaLoad | None:
        if not ends:
            return None
        scores = self.scores(ends, request.input_tokens, replicas)
        return replicas[scores.index(max(scores))]

    def scores(self, ends: Mapping[int, int], prompt_tokens: int, replicas: Replicas) -> list[float]:
        """The score of each replica, where the named ones have so many tokens of the prompt."""
        mean = sum([load.num_unfinished for load in replicas]) / len(replicas)
        return [
            min(ends.get(load.index, 0), prompt_tokens) / prompt_tokens
            - self.beta * (load.num_unfinished - mean) / max(1.0, mean)
            for load in replicas
        ]
