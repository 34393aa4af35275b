"""Step times by a factor: to see what depends on them."""

from collections.abc import Sequence
from dataclasses import dataclass

from simulator.timing.cost import CostModel, GroupCost, StepCounts, StepShape


@dataclass(frozen=True, slots=True)
class Scaled:
    """A cost model whose every step takes `factor` times as long. Implements CostModel."""

    cost: CostModel
    factor: float

    @property
    def wants_context_stats(self) -> bool:
        return self.cost.wants_context_stats

    def step_s(self, shape: StepShape) -> float:
        return self.factor * self.cost.step_s(shape)

    def decode_run_s(self, shape: StepShape, repeat: int) -> list[float]:
        factor = self.factor
        return [factor * seconds for seconds in self.cost.decode_run_s(shape, repeat)]

    def remarks(self, steps: StepCounts) -> Sequence[str]:
        return self.cost.remarks(steps)


@dataclass(frozen=True, slots=True)
class ScaledGroup:
    """Common steps of data-parallel ranks by a factor. Implements GroupCost."""

    cost: GroupCost
    factor: float

    def group_step_s(self, shapes: Sequence[StepShape]) -> float:
        return self.factor * self.cost.group_step_s(shapes)
