"""A CUDA device: events on its stream time the work, and captured graphs launch it at once."""

from __future__ import annotations

import platform
import subprocess
import time
from collections.abc import Callable
from statistics import median
from typing import TypeVar

import torch

from gpu_backend.hidden import Launches
from gpu_backend.nvml import Nvml, Pulse
from simulator.engine.clock import no_garbage_collection
from simulator.hardware.models import Model

Work = TypeVar("Work")

_REFERENCE_RUNS = 9
_LONG_S = 0.05  # of work that is not repeated any more: its time is that much steadier
_SPIN_HZ = 2.2e9  # above the clock of any GPU so far: a wait lasts at least as long as it is meant to


class _CudaStream:
    """`gpu_backend.hidden.Stream`: the current stream."""

    def synchronize(self) -> None:
        torch.cuda.synchronize()

    def wait(self, seconds: float) -> None:
        torch.cuda._sleep(int(seconds * _SPIN_HZ))

    def mark(self) -> torch.cuda.Event:
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def between(self, first: torch.cuda.Event, last: torch.cuda.Event) -> float:
        last.synchronize()
        return float(first.elapsed_time(last)) / 1e3

    def clock(self) -> float:
        return time.perf_counter()


class Cuda:
    """The current CUDA device, timed by events on its stream, launches hidden (`gpu_backend.hidden`)."""

    name = "cuda"

    def __init__(self, repeats: int = 1) -> None:
        self.repeats = repeats
        self.canary = 1.0
        self.launch_s = 0.0
        self.is_hidden = True
        self._launches = Launches(_CudaStream(), lambda work: self.capture(work, warm_ups=0))
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
            before = self.launch_s, self.is_hidden
            self.canary = median([self._once(self._watched) for _ in range(3)]) / self._reference_s
            self.launch_s, self.is_hidden = before
        return self.canary

    def seconds(self, work: Callable[[], object], kind: str = "") -> float:
        took: list[float] = []
        hidden = True
        while len(took) < self.repeats and sum(took) < _LONG_S:
            took.append(self._once(work, kind))
            hidden &= self.is_hidden
        self.is_hidden = hidden
        return median(took)

    def _once(self, work: Callable[[], object], kind: str = "canary") -> float:
        with no_garbage_collection():
            found = self._launches.timed(work, kind)
        self.launch_s, self.is_hidden = found.launch_s, found.is_hidden
        return found.seconds

    def heat(self, seconds: float) -> None:
        left = torch.randn((4096, 4096), device="cuda").to(torch.bfloat16)
        out = torch.empty_like(left)
        until_s = time.perf_counter() + seconds
        while time.perf_counter() < until_s:
            for _ in range(50):
                torch.mm(left, left, out=out)
            torch.cuda.synchronize()

    def capture(self, work: Callable[[], Work], warm_ups: int = 2) -> Callable[[], Work]:
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):  # before: kernels are compiled, libraries set up
            for _ in range(warm_ups):
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

        return self.seconds(both, "beside")

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
    """The GPU's PCI address as NVML writes it; "" where torch does not tell."""
    of = torch.cuda.get_device_properties(torch.cuda.current_device())
    try:
        return f"{of.pci_domain_id:08x}:{of.pci_bus_id:02x}:{of.pci_device_id:02x}.0"
    except AttributeError:
        return ""


def _smi(key: str) -> str:
    """Ask nvidia-smi for a figure; "" where it has none."""
    try:
        done = subprocess.run(
            ["nvidia-smi", f"--query-gpu={key}", "--format=csv,noheader,nounits"],
            capture_output=True, text=True, check=True, timeout=10,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.splitlines()[0].strip() if done.stdout else ""
