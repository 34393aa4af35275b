"""What each step did, noted on the way: for comparing two runs of the same plans."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from simulator.timing.cost import StepShape
from simulator.timing.executor import Executor, Step

if TYPE_CHECKING:
    from simulator.engine.state import ReplicaState

HELD = -1
"""Stands for the place of a finished request that computes on in its slot: it has none that counts."""


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
    """An executor that passes every step on and notes it."""

    inner: Executor
    notes: list[LoggedStep] = field(default_factory=list)
    foresees: bool = field(default=False, init=False)
    wants_context_stats: bool = field(default=True, init=False)
    _state: ReplicaState | None = field(default=None, init=False)

    def __getattr__(self, name: str) -> object:
        if name == "outlook":  # of one that predicts
            return getattr(self.inner, name)
        raise AttributeError(name)

    def attach(self, state: ReplicaState) -> None:
        self._state = state
        if (attach := getattr(self.inner, "attach", None)) is not None:
            attach(state)

    def execute(self, step: Step) -> float:
        named = self._digest(step)
        seconds = self.inner.execute(step)
        out, back = step.swapped_out_blocks, step.swapped_in_blocks
        self.notes.append(LoggedStep(named, step.shape, out, back, seconds))
        return seconds

    def decode_run_s(self, shape: StepShape, repeat: int) -> list[float]:
        raise NotImplementedError("steps are noted one at a time")

    def _digest(self, step: Step) -> str:
        state = self._state
        assert state is not None, "not attached to a replica"
        decodes: list[tuple[int, int]] = []
        if step.shape.decode_seqs:
            decodes = [(live.row, live.num_computed_tokens) for live in state.decoders()]
            decodes += [(live.row, HELD) for live in state.held]
        chunks = [(live.row, live.base_computed, tokens) for live, tokens, _ in step.prefill if tokens]
        return digest(decodes, chunks, step.swapped_out_blocks, step.swapped_in_blocks)
