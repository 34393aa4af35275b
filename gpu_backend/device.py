"""The machine that steps run on: where tensors live, how work is timed, and the machine's fingerprint.

Times of a CPU that others use too wander by a third within minutes. There a *canary*, one fixed piece of work, runs
before and after each repetition of what is timed; the median of the ratios, times the canary's reference, is the
figure. What slows both cancels out. A GPU is its user's own: its canary runs now and then, and tells whether its clock
has moved.
"""

from __future__ import annotations

import ctypes
import os
import platform
import time
from collections.abc import Callable
from contextlib import suppress
from math import nan
from statistics import median
from typing import Protocol, TypeVar

import torch

from gpu_backend.cuda import Cuda, Pulse
from simulator.engine.clock import no_garbage_collection
from simulator.hardware.models import Model

Work = TypeVar("Work")

STEADY = {"cuda": 0.03, "cpu": 2.0}
"""The limit of a canary's distance from its reference, by device: work beside a canary beyond it does not count. On a
CPU times are ratios to the canary's own, so only a gross change of the machine matters."""

_REFERENCE_RUNS = 31
_FEWEST = 3  # repetitions of work so long that `repeats` of it would take more than `_LONG_S`
_LONG_S = 2.0


class Device(Protocol):
    """One device; its own clock times what it does."""

    @property
    def name(self) -> str:
        """The name in torch and `--device`: `cpu` or `cuda`."""

    @property
    def repeats(self) -> int:
        """A step is executed so many times for one figure, their median."""

    def dtype(self, model: Model) -> torch.dtype:
        """The type of weights, activations and pages."""

    def seconds(self, work: Callable[[], object], kind: str = "") -> float:
        """Device seconds of `work`, which may be done over: the median of `repeats` times.

        Work of one `kind` takes about as long to launch.
        """

    def watch(self, canary: Callable[[], object], reference_s: float | None = None) -> float:
        """Let `canary` run beside what is timed from now on; returns its reference, measured unless it is given."""

    @property
    def canary(self) -> float:
        """The canary's time over its reference when it ran last; 1.0 where none is watched."""

    def check(self) -> float:
        """Time the canary now: its time over its reference."""

    @property
    def launch_s(self) -> float:
        """Seconds that the host took to launch the work timed last; 0.0 where the host computes itself."""

    @property
    def is_hidden(self) -> bool:
        """True if the last time holds no launches of the host's, so that it tells the device's own time."""

    def heat(self, seconds: float) -> None:
        """Keep the device busy for so long, to bring its clock to that of a warm device."""

    def capture(self, work: Callable[[], Work]) -> Callable[[], Work]:
        """Capture the work as a graph: each call replays it into the same tensors. On a CPU, return the work itself."""

    def beside(self, work: Callable[[], object], other: Callable[[], object]) -> float | None:
        """Time both at once, in seconds, `other` on a stream of its own; None on a device with one stream."""

    def host_s(self) -> float:
        """Seconds on a clock for the host's part of a step."""

    def fingerprint(self) -> dict[str, str]:
        """Device and software, as far as they can change a figure."""

    def health(self) -> dict[str, float]:
        """Clocks and temperature now, where the device tells them."""

    def pulse(self) -> Pulse:
        """The device's figures now; those that it does not report are NaN."""


class Cpu:
    """One thread of this machine, in float32, timed by the thread's own CPU clock, in turn with a canary if one is
    watched.

    On a shared machine, the times of several threads, or of the wall clock, vary by more than half. Without a canary, a
    step shorter than `settle_s` is first done over untimed for so long: behind one of another shape it takes up to
    twice as long, until caches and allocator have come round, and what came before it is no part of its shape. With
    one, what comes before is always the canary.
    """

    name = "cpu"
    launch_s = 0.0
    is_hidden = True

    def __init__(self, repeats: int = 9, settle_s: float = 0.005) -> None:
        self.repeats = repeats
        self.canary = 1.0
        self._settle_s = settle_s if repeats > 1 else 0.0
        self._watched: Callable[[], object] | None = None
        self._reference_s = nan
        torch.set_num_threads(1)
        _keep_freed_memory()

    def dtype(self, model: Model) -> torch.dtype:
        del model
        return torch.float32

    def watch(self, canary: Callable[[], object], reference_s: float | None = None) -> float:
        for _ in range(3):
            canary()
        if reference_s is None:
            with no_garbage_collection():
                reference_s = median([_thread_seconds(canary) for _ in range(_REFERENCE_RUNS)])
        self._watched, self._reference_s = canary, reference_s
        return reference_s

    def check(self) -> float:
        if self._watched is not None:
            with no_garbage_collection():
                self.canary = median([_thread_seconds(self._watched) for _ in range(3)]) / self._reference_s
        return self.canary

    def seconds(self, work: Callable[[], object], kind: str = "") -> float:
        del kind
        if self._watched is None or self.repeats == 1:
            return self._alone(work)
        return self._beside_canary(work, self._watched)

    def _beside_canary(self, work: Callable[[], object], canary: Callable[[], object]) -> float:
        ratios: list[float] = []
        canaries: list[float] = []
        spent_s = 0.0
        with no_garbage_collection():
            work()  # once untimed: its memory is there, its code warm
            before_s = _thread_seconds(canary)
            while len(ratios) < self.repeats and (len(ratios) < _FEWEST or spent_s < _LONG_S):
                seconds, after_s = _thread_seconds(work), _thread_seconds(canary)
                ratios.append(2.0 * seconds / (before_s + after_s))
                canaries.append(after_s)
                spent_s += seconds + after_s
                before_s = after_s
        self.canary = median(canaries) / self._reference_s
        return median(ratios) * self._reference_s

    def _alone(self, work: Callable[[], object]) -> float:
        took: list[float] = []
        settling_s = 0.0
        with no_garbage_collection():
            while len(took) < self.repeats:
                seconds = _thread_seconds(work)
                if settling_s + seconds < self._settle_s:
                    settling_s += seconds
                else:
                    settling_s = self._settle_s
                    took.append(seconds)
        return median(took)

    def heat(self, seconds: float) -> None:
        del seconds  # it runs at its neighbours' mercy anyway

    def capture(self, work: Callable[[], Work]) -> Callable[[], Work]:
        return work

    def beside(self, work: Callable[[], object], other: Callable[[], object]) -> float | None:
        del work, other
        return None

    def host_s(self) -> float:
        return time.thread_time()

    def fingerprint(self) -> dict[str, str]:
        return {
            "device": _processor(),
            "dtype": "float32",
            "threads": "1",
            "graphs": "none",
            "torch": torch.__version__,
            "capability": torch.backends.cpu.get_cpu_capability(),
            "python": platform.python_version(),
        }

    def health(self) -> dict[str, float]:
        return {"load": os.getloadavg()[0]}

    def pulse(self) -> Pulse:
        return Pulse()


def open_device(name: str, repeats: int | None = None) -> Device:
    """Open the device of that name: `cpu` or `cuda`."""
    if name == "cuda":
        return Cuda() if repeats is None else Cuda(repeats)
    return Cpu() if repeats is None else Cpu(repeats)


def _thread_seconds(work: Callable[[], object]) -> float:
    start = time.thread_time()
    work()
    return time.thread_time() - start


def _keep_freed_memory() -> None:
    """Let glibc keep large blocks that are freed: else a step's temporaries are mapped and faulted in each time."""
    with suppress(OSError, AttributeError):
        libc = ctypes.CDLL("libc.so.6")
        trim_threshold, mmap_threshold = -1, -3  # M_TRIM_THRESHOLD and M_MMAP_THRESHOLD of malloc.h
        libc.mallopt(mmap_threshold, 2**30)
        libc.mallopt(trim_threshold, 2**31 - 1)


def _processor() -> str:
    with suppress(OSError), open("/proc/cpuinfo", encoding="utf-8") as lines:  # noqa: PTH123 - a file of the system
        for line in lines:
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
