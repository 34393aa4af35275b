"""Fixed steps on a backend, timed now and then: they tell whether the device is still as it was for the profile.

They read pages from all over the pool, as traffic does, so that a neighbour who takes cache or memory bandwidth slows
them as it slows steps. They write to the null block alone, so they may be timed at any moment.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import cycle, islice

import numpy as np

from gpu_backend.backend import Backend
from gpu_backend.probes import Grid
from gpu_backend.work import ScheduledPart
from simulator.lockstep.canary import ControlStep

_CONTEXT = 1024  # at most, of a control's decodes


def control_steps(grid: Grid) -> dict[str, ControlStep]:
    """A step in the middle of the grid for each regime that computes."""
    seqs, chunk = max(1, grid.max_num_seqs // 2), max(1, grid.max_num_batched_tokens // 2)
    context = max(2, min(grid.max_context // 4, _CONTEXT))
    return {
        "decode": ControlStep(seqs, context, 0),
        "prefill": ControlStep(0, 0, chunk),
        "mixed": ControlStep(seqs, context, chunk),
    }


class Controls:
    """The control steps of some regimes on a backend."""

    def __init__(self, backend: Backend, steps: Mapping[str, ControlStep]) -> None:
        self._backend = backend
        pages = np.random.default_rng(0).permutation(backend.pool.num_blocks) + 1
        self._parts = {name: _parts(step, pages.tolist(), backend.block_size) for name, step in steps.items()}

    def timed(self) -> dict[str, float]:
        """Time each step, in terms of the canary; a step whose launches could not be hidden is left out."""
        device, found = self._backend.device, {}
        for name, (decodes, parts) in self._parts.items():
            seconds = device.seconds(*self._backend.launchable(parts, decodes))
            if device.is_hidden:
                found[name] = seconds
        return found


def _parts(step: ControlStep, pages: list[int], block_size: int) -> tuple[int, tuple[ScheduledPart, ...]]:
    """The number of decodes, and all parts. The page that a decode writes to, its last, is the null block."""
    drawn = cycle(pages)
    read = -(-step.context // block_size) - 1
    parts = [ScheduledPart(row, step.context - 1, [0], [*islice(drawn, read), 0]) for row in range(step.decodes)]
    wide = (0,) * -(-step.chunk // block_size)
    parts += [ScheduledPart(step.decodes, 0, [0] * step.chunk, wide)] if step.chunk else []
    return step.decodes, tuple(parts)
