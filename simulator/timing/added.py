"""Time that a part of the engine adds to every step: adapters, or the encoder of images."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from simulator.timing.cost import CostModel, GroupCost, StepCounts, StepShape


class Addition(Protocol):
    """Seconds on top of a step's; those of equal counts are equal, however long the contexts are."""

    def s(self, shape: StepShape) -> float: ...


@dataclass(frozen=True, slots=True)
class WithAddition:
    """A cost model with the time of a part on top. Implements CostModel."""

    cost: CostModel
    part: Addition

    @property
    def wants_context_stats(self) -> bool:
        return self.cost.wants_context_stats

    def step_s(self, shape: StepShape) -> float:
        return self.cost.step_s(shape) + self.part.s(shape)

    def decode_run_s(self, shape: StepShape, repeat: int) -> list[float]:
        more_s = self.part.s(shape)
        return [each + more_s for each in self.cost.decode_run_s(shape, repeat)]

    def remarks(self, steps: StepCounts) -> Sequence[str]:
        return self.cost.remarks(steps)


@dataclass(frozen=True, slots=True)
class RanksWithAddition:
    """Common steps of data-parallel ranks that each have such a part: the slowest is waited for."""

    cost: GroupCost
    part: Addition

    def group_step_s(self, shapes: Sequence[StepShape]) -> float:
        return self.cost.group_step_s(shapes) + max(map(self.part.s, shapes))
