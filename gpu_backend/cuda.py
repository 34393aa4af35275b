"""A CUDA device: events on its stream time what it does, captured graphs launch it at once."""

from __future__ import annotations

import platform
import subprocess
import time
from collections.abc import Callable
from statistics import median
from typing import TypeVar

import torch

from gpu_backend.nvml import Nvml, Pulse
from simulator.engine.no_gc import no_garbage_collection
from simulator.hardware.models import Model

Work = TypeVar("Work")

_REFERENCE_RUNS = 9
_SPIN_HZ = 2.0e9  # above the clock of any GPU so far: a wait lasts at least as long as it is meant to
_SHORTEST_WAIT_S = 5e-5
_LONGEST_WAIT_S = 0.25


class Cuda:
    """The current CUDA device, timed by events on its stream.

    Launches are hidden: a kernel that only waits stands before the first event, so that the host has queued the work by
    the time it begins. A step of several hundred small kernels would else be timed by how fast Python launches them,
    which is no property of its shape (servers capture such steps in graphs). Where the wait was too short, which
    `launch_s` shows, the work is done over behind a longer one.
    """

    name = "cuda"

    def __init__(self, repeats: int = 1) -> None:
        self.repeats = repeats
        self.canary = 1.0
        self.launch_s = 0.0
        self._pool = torch.cuda.graph_pool_handle()
        self._watched: Callable[[], object] | None = None
        self._reference_s = 1.0
        self._nvml = Nvml(_pci_address())

    def dtype(self, model: Model) -> torch.dtype:
        return torch.float32 if model.dtype_bytes == 4 else torch.bfloat16

    def watch(self, canary: Callable[[], object], reference_s: float | None = None) -> float:
        canary()
        if reference_s is None:
            reference_s = median([self._once(canary) for _ in range(_REFERENCE_RUNS)])
        self._watched, self._reference_s = canary, reference_s
        return reference_s

    def check(self) -> float:
        if self._watched is not None:
            launch_s = self.launch_s
            self.canary = median([self._once(self._watched) for _ in range(3)]) / self._reference_s
            self.launch_s = launch_s
        return self.canary

    def seconds(self, work: Callable[[], object]) -> float:
        return median([self._once(work) for _ in range(self.repeats)])

    def _once(self, work: Callable[[], object]) -> float:
        with no_garbage_collection():
            wait_s = max(_SHORTEST_WAIT_S, 1.5 * self.launch_s)
            for is_last in (False, True):
                start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
                torch.cuda.synchronize()
                torch.cuda._sleep(int(wait_s * _SPIN_HZ))
                start.record()
                begin_s = time.perf_counter()
                work()
                self.launch_s = time.perf_counter() - begin_s
                end.record()
                end.synchronize()
                if is_last or self.launch_s < 0.9 * wait_s:
                    break
                wait_s = min(_LONGEST_WAIT_S, 2.0 * self.launch_s)
        return float(start.elapsed_time(end)) / 1e3

    def heat(self, seconds: float) -> None:
        left = torch.randn((4096, 4096), device="cuda").to(torch.bfloat16)
        out = torch.empty_like(left)
        until_s = time.perf_counter() + seconds
        while time.perf_counter() < until_s:
            for _ in range(50):
                torch.mm(left, left, out=out)
            torch.cuda.synchronize()

    def capture(self, work: Callable[[], Work]) -> Callable[[], Work]:
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):  # before: kernels are compiled, libraries set up
            for _ in range(2):
                work()
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        # A collection in the middle may free a tensor of another stream, which a capture does not survive.
        with no_garbage_collection(), torch.cuda.graph(graph, pool=self._pool):
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
        return {name: value for name, value in self.pulse()._asdict().items() if value == value}

    def pulse(self) -> Pulse:
        return self._nvml.pulse()


def _pci_address() -> str:
    """As NVML writes it; "" where torch does not tell."""
    of = torch.cuda.get_device_properties(torch.cuda.current_device())
    try:
        return f"{of.pci_domain_id:08x}:{of.pci_bus_id:02x}:{of.pci_device_id:02x}.0"
    except AttributeError:
        return ""


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
