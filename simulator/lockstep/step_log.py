"""A log of the steps of a run: for comparing two runs of the same plans."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from simulator.request_state import FINISHED
from simulator.timing.cost import StepShape
from simulator.timing.executor import Executor, ExecutorTraits, Step

HELD = -1  # stands for the KV tokens of a finished request that computes on in its slot: their number means nothing


def digest(
    decodes: Sequence[tuple[int, int]],
    chunks: Sequence[tuple[int, int, int]],
    swapped_out_blocks: int,
    swapped_in_blocks: int,
) -> str:
    """16 hexadecimal digits that name what a step does.

    `decodes` are (row, KV tokens before the step), with `HELD` for those that have finished; `chunks` are (row, KV
    tokens before, tokens to compute). Their order does not matter.
    """
    text = repr((sorted(decodes), sorted(chunks), swapped_out_blocks, swapped_in_blocks))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


@dataclass(frozen=True, slots=True)
class LoggedStep:
    """One step: what it did and how long it took."""

    digest: str
    shape: StepShape
    swapped_out_blocks: int
    swapped_in_blocks: int
    seconds: float


@dataclass(slots=True)
class StepLog:
    """An executor that passes every step on and keeps what it did."""

    inner: Executor
    steps: list[LoggedStep] = field(default_factory=list)

    @property
    def traits(self) -> ExecutorTraits:
        """The inner executor's traits, but steps come one at a time, with all of their counts."""
        return replace(self.inner.traits, decode_run_s=None, wants_context_stats=True)

    def execute(self, step: Step) -> float:
        named = _digest(step)
        seconds = self.inner.execute(step)
        out, back = step.swapped_out_blocks, step.swapped_in_blocks
        self.steps.append(LoggedStep(named, step.shape, out, back, seconds))
        return seconds


def _digest(step: Step) -> str:
    decodes = [(live.row, HELD if live.status is FINISHED else live.num_computed_tokens) for live in step.decoders]
    chunks = [(live.row, live.base_computed, tokens) for live, tokens, _ in step.prefill if tokens]
    return digest(decodes, chunks, step.swapped_out_blocks, step.swapped_in_blocks)
