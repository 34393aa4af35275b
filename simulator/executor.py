"""The seam between deciding and doing: a step in, seconds out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Protocol

from simulator.cost import CostModel, StepShape
from simulator.plan import StepPlan


class Step(Protocol):
    """A plan that has been applied, and what it amounts to."""

    @property
    def plan(self) -> StepPlan: ...

    @property
    def shape(self) -> StepShape: ...

    @property
    def swapped_out_blocks(self) -> int: ...

    @property
    def swapped_in_blocks(self) -> int: ...


class Executor(Protocol):
    """Carries out steps and says how long each took."""

    @property
    def foresees(self) -> bool:
        """Whether `decode_run_s` may be asked: durations known beforehand, and asking for too many does no harm."""

    def execute(self, step: Step) -> float:
        """Seconds of the step."""

    def decode_run_s(self, decode_seqs: int, decode_context: int, repeat: int) -> list[float]:
        """Seconds of each of `repeat` decode steps, as in `CostModel.decode_run_s`."""


class Predicted:
    """Durations from a cost model; swapped blocks stall the step for `swap_s_per_block` each."""

    foresees = True

    def __init__(self, cost: CostModel, swap_s_per_block: float = 0.0) -> None:
        self._cost = cost
        self._swap_s_per_block = swap_s_per_block
        self.decode_run_s = cost.decode_run_s

    def execute(self, step: Step) -> float:
        seconds = self._cost.step_s(step.shape)
        swapped = step.swapped_out_blocks + step.swapped_in_blocks
        return seconds + swapped * self._swap_s_per_block if swapped else seconds


class Replay:
    """Durations recorded before, one a step, in order."""

    foresees = False

    def __init__(self, durations_s: Sequence[float]) -> None:
        self._durations = iter(durations_s)

    def execute(self, step: Step) -> float:
        try:
            return next(self._durations)
        except StopIteration:
            raise ValueError("the recorded run has no more steps: the plans differ from those recorded") from None

    def decode_run_s(self, decode_seqs: int, decode_context: int, repeat: int) -> list[float]:
        return list(islice(self._durations, repeat))


@dataclass(frozen=True, slots=True)
class StepPair:
    """One step, as both sides of a lockstep saw it."""

    shape: StepShape
    clock_s: float
    shadow_s: float


@dataclass(slots=True)
class Lockstep:
    """Two executors carry out the same steps: one is the clock, the other's durations are only noted."""

    clock: Executor
    shadow: Executor
    pairs: list[StepPair] = field(default_factory=list)
    foresees: bool = field(default=False, init=False)

    def execute(self, step: Step) -> float:
        clock_s = self.clock.execute(step)
        self.pairs.append(StepPair(step.shape, clock_s, self.shadow.execute(step)))
        return clock_s

    def decode_run_s(self, decode_seqs: int, decode_context: int, repeat: int) -> list[float]:
        raise NotImplementedError("a lockstep executes one step at a time")
