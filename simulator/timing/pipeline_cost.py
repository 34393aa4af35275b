"""Costs made of other costs: a step by a factor, and a step on the stages of a pipeline."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final, Protocol, runtime_checkable

from simulator.hardware.stages import Stage
from simulator.timing.cost import CostModel, GroupCost, StepCounts, StepShape

# Step times by a factor: to see what depends on them.


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


# Seconds of a step on a pipeline: each stage computes some of the layers, and hands its result to the next.

ENGINE_IDLE_S: Final = 0.001
"""vLLM's engine sleeps so long after a call that ran no model (0.33, vllm/v1/engine/core.py:1694)."""


@dataclass(frozen=True, slots=True)
class PipelineCost:
    """A cost for each stage, in order. Implements CostModel: a step that is alone on the pipeline.

    Between two stages lie `hop_s` seconds and `hop_s_per_token` for each token of the step. `idle_s` is the sleep of
    the engine after a call that ran no model; with 0 it makes no call either that only tells of ended requests. With
    asynchronous scheduling a step may be on its way before its tokens exist: the first stage then `waits_for_tokens`.
    """

    stages: tuple[CostModel, ...]
    hop_s: float = 0.0
    hop_s_per_token: float = 0.0
    idle_s: float = ENGINE_IDLE_S
    waits_for_tokens: bool = True

    def stages_s(self, shape: StepShape) -> list[float]:
        """Seconds that the step takes on each stage."""
        return [stage.step_s(shape) for stage in self.stages]

    def transfer_s(self, shape: StepShape) -> float:
        """Seconds from the end of a stage until the next has its result."""
        return self.hop_s + self.hop_s_per_token * shape.tokens

    def scaled(self, factor: float) -> "PipelineCost":
        """The pipeline with stages and transfers that take `factor` times as long."""
        stages = tuple(Scaled(stage, factor) for stage in self.stages)
        return replace(self, stages=stages, hop_s=factor * self.hop_s, hop_s_per_token=factor * self.hop_s_per_token)

    @property
    def wants_context_stats(self) -> bool:
        return any(stage.wants_context_stats for stage in self.stages)

    def step_s(self, shape: StepShape) -> float:
        if not shape.tokens:
            return 0.0
        return sum(self.stages_s(shape)) + (len(self.stages) - 1) * self.transfer_s(shape)

    def decode_run_s(self, shape: StepShape, repeat: int) -> list[float]:
        return [self.step_s(shape.later(later)) for later in range(repeat)]

    def remarks(self, steps: StepCounts) -> Sequence[str]:
        return list(dict.fromkeys(remark for stage in self.stages for remark in stage.remarks(steps)))


@runtime_checkable
class Staged(Protocol):
    """A cost model that knows what its layers, its embedding and its head cost."""

    def stage(self, stage: Stage) -> CostModel:
        """The cost of this stage of its model, with the host's time on each."""


def cost_of_stage(cost: CostModel, stage: Stage) -> CostModel:
    """The cost of a stage; of a model that knows no layers, the stage's share of a step."""
    return cost.stage(stage) if isinstance(cost, Staged) else Scaled(cost, stage.share)
