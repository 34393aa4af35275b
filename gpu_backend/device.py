"""The machine that steps run on: where tensors live, how work is timed, and the machine's fingerprint."""

from __future__ import annotations

import ctypes
import os
import platform
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from statistics import median
from typing import Protocol, TypeVar

import torch

from simulator.engine.no_gc import no_garbage_collection
from simulator.hardware.models import Model

Work = TypeVar("Work")


class Device(Protocol):
    """One device; its own clock times what it does."""

    @property
    def name(self) -> str:
        """As torch and `--device` call it: `cpu` or `cuda`."""

    @property
    def repeats(self) -> int:
        """How often a step is executed for one figure, of which the median counts."""

    def dtype(self, model: Model) -> torch.dtype:
        """The type of weights, activations and pages."""

    def seconds(self, work: Callable[[], object]) -> float:
        """Device seconds of `work`, which may be done over: the median of `repeats` times."""

    def capture(self, work: Callable[[], Work]) -> Callable[[], Work]:
        """The work captured as a graph: each call replays it into the same tensors. On a CPU, the work itself."""

    def beside(self, work: Callable[[], object], other: Callable[[], object]) -> float | None:
        """Seconds of both at once, `other` on a stream of its own; None on a device with one stream."""

    def host_s(self) -> float:
        """A clock for the host's part of a step."""

    def fingerprint(self) -> dict[str, str]:
        """Device and software, as far as they can change a figure."""

    def health(self) -> dict[str, float]:
        """Clocks and temperature now, where the device tells them."""


class Cpu:
    """One thread of this machine, in float32, timed by the thread's own CPU clock.

    On a shared machine, the times of several threads, or of the wall clock, vary by more than half. A step shorter than
    `settle_s` is first done over untimed for so long: behind one of another shape it takes up to twice as long, until
    caches and allocator have come round, and what came before it is no part of its shape.
    """

    name = "cpu"

    def __init__(self, repeats: int = 3, settle_s: float = 0.005) -> None:
        self.repeats = repeats
        self._settle_s = settle_s if repeats > 1 else 0.0
        torch.set_num_threads(1)
        _keep_freed_memory()

    def dtype(self, model: Model) -> torch.dtype:
        del model
        return torch.float32

    def seconds(self, work: Callable[[], object]) -> float:
        took: list[float] = []
        settling_s = 0.0
        with no_garbage_collection():
            while len(took) < self.repeats:
                start = time.thread_time()
                work()
                seconds = time.thread_time() - start
                if settling_s + seconds < self._settle_s:
                    settling_s += seconds
                else:
                    settling_s = self._settle_s
                    took.append(seconds)
        return median(took)

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
            "torch": torch.__version__,
            "capability": torch.backends.cpu.get_cpu_capability(),
            "python": platform.python_version(),
        }

    def health(self) -> dict[str, float]:
        return {"load": os.getloadavg()[0]}


class Cuda:
    """The current CUDA device, timed by events on its stream."""

    name = "cuda"

    def __init__(self, repeats: int = 1) -> None:
        self.repeats = repeats
        self._pool = torch.cuda.graph_pool_handle()

    def dtype(self, model: Model) -> torch.dtype:
        return torch.float32 if model.dtype_bytes == 4 else torch.bfloat16

    def seconds(self, work: Callable[[], object]) -> float:
        took = []
        with no_garbage_collection():
            for _ in range(self.repeats):
                start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
                torch.cuda.synchronize()
                start.record()
                work()
                end.record()
                end.synchronize()
                took.append(float(start.elapsed_time(end)) / 1e3)
        return median(took)

    def capture(self, work: Callable[[], Work]) -> Callable[[], Work]:
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):  # before: kernels are compiled, libraries set up
            for _ in range(2):
                work()
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool):
            made = work()

        def replay() -> Work:
            graph.replay()
            return made

        return replay

    def beside(self, work: Callable[[], object], other: Callable[[], object]) -> float | None:
        stream = torch.cuda.Stream()

        def both() -> None:
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                other()
            work()
            torch.cuda.current_stream().wait_stream(stream)

        return self.seconds(both)

    def host_s(self) -> float:
        return time.perf_counter()

    def fingerprint(self) -> dict[str, str]:
        properties = torch.cuda.get_device_properties(0)
        return {
            "device": properties.name,
            "capability": f"{properties.major}.{properties.minor}",
            "memory_gib": f"{properties.total_memory / 2**30:.1f}",
            "sms": str(properties.multi_processor_count),
            "torch": torch.__version__,
            "cuda": str(torch.version.cuda),
            "driver": _smi("driver_version"),
            "python": platform.python_version(),
        }

    def health(self) -> dict[str, float]:
        found = {}
        for key in ("clocks.sm", "clocks.mem", "temperature.gpu", "power.draw"):
            with suppress(ValueError):
                found[key] = float(_smi(key))
        return found


def open_device(name: str, repeats: int | None = None) -> Device:
    """The device of that name: `cpu` or `cuda`."""
    if name == "cuda":
        return Cuda() if repeats is None else Cuda(repeats)
    return Cpu() if repeats is None else Cpu(repeats)


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


def _smi(key: str) -> str:
    """A figure of nvidia-smi; empty where it has none."""
    try:
        done = subprocess.run(
            ["nvidia-smi", f"--query-gpu={key}", "--format=csv,noheader,nounits"],
            capture_output=True, text=True, check=True, timeout=10,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.splitlines()[0].strip() if done.stdout else ""
