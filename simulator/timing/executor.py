"""The seam between deciding and doing: a step in, seconds out."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from simulator.memory.blocks import BlockTables
from simulator.plan import StepPlan
from simulator.request import Request
from simulator.request_state import RequestState, ScheduledChunk
from simulator.timing.cost import CostModel, StepShape


class Step(Protocol):
    """A plan that has been applied: all that an executor may have to know of it."""

    @property
    def plan(self) -> StepPlan: ...

    @property
    def shape(self) -> StepShape: ...

    @property
    def decoders(self) -> Sequence[RequestState]:
        """Requests that compute one token, in order of admission; then finished ones that compute along."""

    @property
    def prefill(self) -> Sequence[ScheduledChunk]:
        """Prompt chunks to compute; the requests' own counts are still those before the step."""

    @property
    def swapped_out_blocks(self) -> int: ...

    @property
    def swapped_in_blocks(self) -> int: ...

    @property
    def block_tables(self) -> BlockTables | None:
        """The replica's blocks by id, those of the step's tokens among them; None where blocks are only counted."""

    @property
    def requests(self) -> Mapping[int, Request]:
        """The replica's unfinished requests by row, with their answers."""


class Outlook(Protocol):
    """Predicted seconds that recomputing or swapping a request would add to a step of `decodes` alone."""

    def recompute_s(self, num_tokens: int, decodes: StepShape) -> float:
        """Seconds to compute so many tokens at once."""

    def swap_s(self, num_blocks: int, decodes: StepShape) -> float:
        """Seconds to move so many blocks out with one such step, and back in with another."""


@dataclass(frozen=True, slots=True)
class ExecutorTraits:
    """Options of an executor beyond `Executor.execute`: what it offers and what it needs.

    `decode_run_s`, as in `CostModel`, is for one that knows durations beforehand, and bears to be asked for more of
    them than are used; without it, steps are executed one at a time. `outlook` is for policies that weigh swapping
    against recomputing. With `wants_block_ids`, blocks without ids are bad input.
    """

    decode_run_s: Callable[[StepShape, int], list[float]] | None = None
    outlook: Outlook | None = None
    wants_context_stats: bool = False  # as in `CostModel`
    wants_block_ids: bool = False


class Executor(Protocol):
    """Carries out steps and says how long each took."""

    @property
    def traits(self) -> ExecutorTraits:
        """Asked once, before the first step."""

    def execute(self, step: Step) -> float:
        """Seconds of the step."""


class Predicted:
    """Durations from a cost model; a block that is swapped moves for `swap_s_per_block`, one after the other.

    Moving stalls the step: copies and kernels wait for each other, as in vLLM before v1, which copies on the stream
    that computes. With `swap_overlap` blocks move beside the step, on a stream of their own (as in FastServe, and in
    vLLM's offloading connector), and the step lasts as long as the longer of the two. This is the best that a system
    can do: the copies slow no kernel (the host link has about a hundredth of the memory's bandwidth), and no request
    of the step waits for a copy, whether it takes a block that is still moving out or returns itself.
    """

    def __init__(self, cost: CostModel, swap_s_per_block: float = 0.0, *, swap_overlap: bool = False) -> None:
        self._cost = cost
        self._swap_s_per_block = swap_s_per_block
        self._swap_overlap = swap_overlap
        self.traits = ExecutorTraits(cost.decode_run_s, self, wants_context_stats=cost.wants_context_stats)

    def execute(self, step: Step) -> float:
        seconds = self._cost.step_s(step.shape)
        swapped = step.swapped_out_blocks + step.swapped_in_blocks
        return self._with_swap(seconds, swapped) if swapped else seconds

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

    traits = ExecutorTraits()

    def __init__(self, durations_s: Sequence[float]) -> None:
        self._durations = iter(durations_s)

    def execute(self, step: Step) -> float:
        try:
            return next(self._durations)
        except StopIteration:
            raise ValueError("the recorded run has no more steps: the plans differ from those recorded") from None


@dataclass(frozen=True, slots=True)
class Lockstep:
    """Two executors carry out the same steps: one is the clock, the other keeps what it measures."""

    clock: Executor
    shadow: Executor

    @property
    def traits(self) -> ExecutorTraits:
        """The needs of either executor; the clock's outlook, or the shadow's where the clock is a device."""
        clock, shadow = self.clock.traits, self.shadow.traits
        return ExecutorTraits(
            outlook=clock.outlook or shadow.outlook,
            wants_context_stats=clock.wants_context_stats or shadow.wants_context_stats,
            wants_block_ids=clock.wants_block_ids or shadow.wants_block_ids,
        )

    def execute(self, step: Step) -> float:
        clock_s = self.clock.execute(step)
        self.shadow.execute(step)
        return clock_s
