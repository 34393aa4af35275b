"""Host time of a step: scheduling, preparing inputs and taking up results, as far as the GPU waits for it."""

from collections.abc import Sequence
from dataclasses import dataclass

from simulator.timing.cost import CostModel, StepCounts, StepShape, check_seconds
from simulator.timing.floor import StepFloor, floors_of


@dataclass(frozen=True, slots=True)
class Host:
    """Seconds (finite, 0 or more) by which the host holds up each step, and for each request in it; their source."""

    step_s: float = 0.0
    per_seq_s: float = 0.0
    source: str = ""

    def __post_init__(self) -> None:
        check_seconds(self, "host", "step_s", "per_seq_s")

    def s(self, seqs: int) -> float:
        """Seconds of a step with so many requests."""
        return self.step_s + self.per_seq_s * seqs


@dataclass(frozen=True, slots=True)
class WithHost:
    """A cost model that knows no host, with a host on every step. Implements CostModel."""

    cost: CostModel
    host: Host

    @property
    def wants_context_stats(self) -> bool:
        return self.cost.wants_context_stats

    def step_s(self, shape: StepShape) -> float:
        return self.cost.step_s(shape) + self.host.s(shape.decode_seqs + shape.prefill_seqs) if shape.tokens else 0.0

    def decode_run_s(self, shape: StepShape, repeat: int) -> list[float]:
        added_s = self.host.s(shape.decode_seqs)
        return [seconds + added_s for seconds in self.cost.decode_run_s(shape, repeat)]

    def remarks(self, steps: StepCounts) -> Sequence[str]:
        return self.cost.remarks(steps)

    def floors(self, most_tokens: int) -> list[StepFloor]:
        """Those of the cost model, with the host's time."""
        host = StepFloor(self.host.step_s, row=self.host.per_seq_s)
        return [floor.plus(host) for floor in floors_of(self.cost, most_tokens)]
