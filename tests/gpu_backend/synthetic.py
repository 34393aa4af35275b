"""A GPU that is a formula: known coefficients, known noise, stalls when something is new, a clock that may drift.

Only the time that work takes is invented. Shapes, rows, fits, plans, executors, comparisons and verdicts are the real
code's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gpu_backend.backend import EAGER, Backend
from gpu_backend.decoder import PagedPool
from gpu_backend.device import Cpu, Pulse
from gpu_backend.work import ScheduledPart, Swap, Work
from simulator.hardware.models import Model, custom_model
from simulator.timing.cost import StepShape
from simulator.timing.profile.profile_cost import capture_sizes

MODEL = custom_model(
    {"layers": 1, "hidden": 16, "intermediate": 16, "heads": 2, "kv_heads": 1, "vocab": 64, "max_model_len": 2048}
)
NOISE = 0.01
SWAP_US = 300.0  # a page
_SIZES = capture_sizes(512)


def true_us(shape: StepShape) -> float:
    """What a step takes: weights until 256 tokens, operations beyond, KV and pairs read."""
    tokens = next((size for size in _SIZES if size >= shape.tokens), shape.tokens)
    rows = shape.decode_seqs + shape.prefill_seqs
    work = 3000.0 + 9.0 * max(0, tokens - 256)
    return work + 3.0 * rows + 0.05 * shape.decode_context + 0.004 * shape.prefill_pairs


class SyntheticGpu:
    """A `gpu_backend.device.Device`. `speed` gives how much longer all takes at a moment of its own busy seconds;
    `stall` is added when a kind of step runs for the first time."""

    name = "cuda"
    repeats = 1
    launch_s = 0.0
    is_hidden = True

    def __init__(self, seed: int = 0, speed: Callable[[float], float] = lambda at_s: 1.0, stall_s: float = 0.0) -> None:
        self.canary = 1.0
        self.busy_s = 0.0
        self.stall_s = stall_s
        self._speed, self._random = speed, np.random.default_rng(seed)
        self._spent_us = 0.0
        self._seen: set[tuple[bool, bool]] = set()

    def spend(self, us: float, kind: tuple[bool, bool] | None = None) -> None:
        """Take so long; longer where the kind is new."""
        self._spent_us += us
        if kind is not None and kind not in self._seen:
            self._seen.add(kind)
            self._spent_us += self.stall_s * 1e6

    def seconds(self, work: Callable[[], object], kind: str = "") -> float:
        del kind
        self._spent_us = 0.0
        work()
        seconds = self._spent_us * 1e-6 * self._speed(self.busy_s) * float(np.exp(self._random.normal(0.0, NOISE)))
        self.busy_s += seconds
        return seconds

    def watch(self, canary: Callable[[], object], reference_s: float | None = None) -> float:
        del canary
        return reference_s or 1.0

    def check(self) -> float:
        self.canary = self._speed(self.busy_s) * float(np.exp(self._random.normal(0.0, NOISE / 5)))
        return self.canary

    def heat(self, seconds: float) -> None:
        del seconds

    def dtype(self, model: Model) -> torch.dtype:
        del model
        return torch.float32

    def capture(self, work: Callable[[], Any]) -> Callable[[], Any]:
        return work

    def beside(self, work: Callable[[], object], other: Callable[[], object]) -> float | None:
        del work, other
        return None

    def host_s(self) -> float:
        return 0.0

    def fingerprint(self) -> dict[str, str]:
        return {"device": "synthetic", "torch": "none"}

    def health(self) -> dict[str, float]:
        return {}

    def pulse(self) -> Pulse:
        return Pulse(1980.0, 2619.0, 650.0, 60.0)


class _Pool(PagedPool):
    """Pages whose moves are priced."""

    gpu: SyntheticGpu

    def moving_out(self, swap: Swap) -> Callable[[], None]:
        return lambda: self.gpu.spend(SWAP_US * len(swap.source))

    moving_in = moving_out


class SyntheticBackend(Backend):
    """A backend whose steps take what the formula says."""

    def __init__(self, gpu: SyntheticGpu, blocks: int = 1024, host: int = 256) -> None:
        super().__init__(MODEL, Cpu(1), blocks, 16, host)
        pool = _Pool(MODEL, blocks, 16, host, "cpu", torch.float32)
        pool.gpu = gpu
        self.pool, self.device = pool, gpu

    def _prepared(self, parts: tuple[ScheduledPart, ...], decodes: int) -> tuple[Callable[[], Tensor], int, str]:
        shape = Work(parts[:decodes], parts[decodes:]).shape
        logits = torch.zeros((len(parts), 4))
        gpu = self.device
        assert isinstance(gpu, SyntheticGpu)

        def forward() -> Tensor:
            gpu.spend(true_us(shape), (bool(shape.decode_seqs), bool(shape.prefill_tokens)))
            return logits

        return forward, sum(part.samples for part in parts), EAGER
