"""Decode steps as captured graphs: launched at once instead of kernel by kernel, at batch sizes fixed beforehand.

A batch is padded to the next size that was captured. What a graph reads lies at fixed addresses and is filled before
each replay. The sizes are vLLM's (`simulator.timing.profile.profile_cost.capture_sizes`), so that a profile pads alike.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from gpu_backend.decoder import Decoder, Inputs
from gpu_backend.device import Device
from gpu_backend.work import AttentionImpl, ScheduledPart, StepArrays, step_arrays


@runtime_checkable
class Reserving(AttentionImpl, Protocol):
    """Attention whose preparation can be filled again in place: `gpu_backend.attention.paged.PagedAttention`."""

    def prepare(self, rows: StepArrays, into: Any = None) -> Any: ...

    def reserve(self, seqs: int, max_context: int, *, cache_tokens: int | None = None) -> Any: ...


@dataclass(frozen=True, slots=True)
class _Captured:
    inputs: Inputs
    replay: Callable[[], Tensor]


class DecodeGraphs:
    """Graphs of pure decode steps for batches of up to `sizes[-1]` requests of up to `max_context` KV tokens."""

    def __init__(
        self, decoder: Decoder, attention: Reserving, device: Device, sizes: Sequence[int], max_context: int
    ) -> None:
        self._decoder, self._attention, self._device = decoder, attention, device
        self._sizes = sorted(sizes)
        self._max_context = max_context
        # The largest first: the others find their memory in its pool.
        self._captured = {size: self._capture(size) for size in reversed(self._sizes)}

    def ready(self, rows: StepArrays) -> Callable[[], Tensor] | None:
        """Fill the step's graph: a call gives logits, those of the batch first. None where the step fits no graph."""
        place = bisect_left(self._sizes, len(rows))
        if place == len(self._sizes) or int(rows.context.max()) > self._max_context:
            return None
        captured = self._captured[self._sizes[place]]
        self._fill(captured.inputs, rows)
        return captured.replay

    def _fill(self, inputs: Inputs, rows: StepArrays) -> None:
        count = len(rows)
        position = np.minimum(rows.position, self._decoder.model.max_model_len - 1)
        inputs.token[:count].copy_(torch.from_numpy(rows.token))
        inputs.position[:count].copy_(torch.from_numpy(position))
        self._attention.prepare(rows, into=inputs.attention)

    def _capture(self, size: int) -> _Captured:
        device = self._decoder.weights.device
        pool = self._decoder.pool
        zeros = torch.zeros((2, size), dtype=torch.int64, device=device)
        all_of_them = torch.arange(size, device=device)
        cache_tokens = pool.num_blocks * pool.block_size
        reserved = self._attention.reserve(size, self._max_context, cache_tokens=cache_tokens)
        inputs = Inputs(zeros[0], zeros[1], all_of_them, reserved)
        dummy = [ScheduledPart(row, 0, [0], (0,)) for row in range(size)]  # writes to the null page
        self._fill(inputs, step_arrays(dummy, size, pool.block_size))
        return _Captured(inputs, self._device.capture(lambda: self._decoder.sampled(inputs)))
