"""The seam between deciding and doing: a step in, seconds out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Protocol

from simulator.plan import StepPlan
from simulator.timing.cost import CostModel, StepShape

if TYPE_CHECKING:
    from simulator.engine.state import ReplicaState, ScheduledChunk


class Step(Protocol):
    """A plan that has been applied, and what it amounts to."""

    @property
    def plan(self) -> StepPlan: ...

    @property
    def shape(self) -> StepShape: ...

    @property
    def prefill(self) -> Sequence[ScheduledChunk]:
        """Prompt chunks to compute; the requests' own counts are still those before the step."""

    @property
    def swapped_out_blocks(self) -> int: ...

    @property
    def swapped_in_blocks(self) -> int: ...


class Executor(Protocol):
    """Carries out steps and says how long each took.

    Three members are optional. `outlook: Outlook`, of one that predicts, is for policies that weigh swapping against
    recomputing. `attach(state: ReplicaState)` is called once, before the first step, on an executor that has to know
    more than the step: who decodes, and which blocks are whose. `wants_context_stats` is as in `CostModel`.
    """

    @property
    def foresees(self) -> bool:
        """Whether `decode_run_s` may be asked: durations known beforehand, and asking for too many does no harm."""

    def execute(self, step: Step) -> float:
        """Seconds of the step."""

    def decode_run_s(self, shape: StepShape, repeat: int) -> list[float]:
        """Seconds of each of `repeat` decode steps, as in `CostModel.decode_run_s`."""


class Outlook(Protocol):
    """What recomputing or swapping a request would add to a step of `decodes` alone; seconds, predicted."""

    def recompute_s(self, num_tokens: int, decodes: StepShape) -> float:
        """Of computing so many tokens at once."""

    def swap_s(self, num_blocks: int, decodes: StepShape) -> float:
        """Of moving so many blocks out with one such step, and back in with another."""


class Predicted:
    """Durations from a cost model; a block that is swapped moves for `swap_s_per_block`, one after the other.

    Moving stalls the step: copies and kernels wait for each other, as in vLLM before v1, which copies on the stream
    that computes. With `swap_overlap` blocks move beside the step, on a stream of their own (as in FastServe, and in
    vLLM's offloading connector), and it lasts as long as the longer of the two. This takes the copies to cost the
    kernels nothing, as the host link has about a hundredth of the memory's bandwidth, and nobody in the step to wait
    for a copy: neither who gets a block that is still on its way out, nor who comes back. No system can do better.
    """

    foresees = True

    def __init__(self, cost: CostModel, swap_s_per_block: float = 0.0, *, swap_overlap: bool = False) -> None:
        self._cost = cost
        self._swap_s_per_block = swap_s_per_block
        self._swap_overlap = swap_overlap
        self.decode_run_s = cost.decode_run_s
        self.wants_context_stats: bool = getattr(cost, "wants_context_stats", False)

    def execute(self, step: Step) -> float:
        seconds = self._cost.step_s(step.shape)
        swapped = step.swapped_out_blocks + step.swapped_in_blocks
        return self._with_swap(seconds, swapped) if swapped else seconds

    @property
    def outlook(self) -> Outlook:
        return self

    def recompute_s(self, num_tokens: int, decodes: StepShape) -> float:
        pairs = num_tokens * (num_tokens + 1) // 2
        both = decodes._replace(
            prefill_seqs=1,
            prefill_tokens=num_tokens,
            prefill_context=num_tokens,
            prefill_pairs=pairs,
            prefill_longest=num_tokens,
        )
        return self._cost.step_s(both) - self._cost.step_s(decodes)

    def swap_s(self, num_blocks: int, decodes: StepShape) -> float:
        seconds = self._cost.step_s(decodes)
        return 2 * (self._with_swap(seconds, num_blocks) - seconds)

    def _with_swap(self, seconds: float, blocks: int) -> float:
        moving_s = blocks * self._swap_s_per_block
        return max(seconds, moving_s) if self._swap_overlap else seconds + moving_s


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

    def decode_run_s(self, shape: StepShape, repeat: int) -> list[float]:
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

    def attach(self, state: ReplicaState) -> None:
        """Let those of the two that ask for it see the replica."""
        for executor in (self.clock, self.shadow):
            if (attach := getattr(executor, "attach", None)) is not None:
                attach(state)

    @property
    def wants_context_stats(self) -> bool:
        return any(getattr(executor, "wants_context_stats", False) for executor in (self.clock, self.shadow))

    @property
    def outlook(self) -> Outlook | None:
        """The clock's, or the shadow's where the clock is a device."""
        found: Outlook | None = getattr(self.clock, "outlook", None) or getattr(self.shadow, "outlook", None)
        return found

    def execute(self, step: Step) -> float:
        clock_s = self.clock.execute(step)
        self.pairs.append(StepPair(step.shape, clock_s, self.shadow.execute(step)))
        return clock_s

    def decode_run_s(self, shape: StepShape, repeat: int) -> list[float]:
        raise NotImplementedError("a lockstep executes one step at a time")
