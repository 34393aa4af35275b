"""Decisions of our engine on cases of images, in the format of the recorded files."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from simulator.simulate import simulate_fleet
from simulator.timing.added import WithAddition
from simulator.timing.cost import StepShape
from tests.parity.cases import cost_of, group_of, workload_of
from tests.parity.pipeline_features import with_ids


@dataclass(frozen=True)
class PerEmbedding:
    """So many seconds for an embedding."""

    seconds: float

    def s(self, shape: StepShape) -> float:
        return shape.embeddings * self.seconds


def encoder(case: Mapping[str, Any], *, fast_forward: bool | None = None) -> list[dict[str, Any]]:
    """The steps of a replica whose prompts hold images."""
    given, count = with_ids(case), len(case["requests"])
    fast = count % 2 == 0 if fast_forward is None else fast_forward
    cost = WithAddition(cost_of(given), PerEmbedding(case["cost"]["e"]))
    group = replace(group_of(given, by_id=count % 3 == 0), cost=cost)
    run = simulate_fleet(workload_of(given), [group], fast_forward=fast, log_decisions=True)
    assert run.decisions is not None
    return [{**step, "t_end": step["t_end_s"]} for step in run.decisions]
