"""A CUDA device: events on its stream time the work, and captured graphs launch it at once."""

from __future__ import annotations

import ctypes
import platform
import subprocess
import time
from collections.abc import Callable
from math import nan
from statistics import median
from typing import Any, NamedTuple, Protocol, TypeVar

import torch

from simulator.engine.clock import no_garbage_collection
from simulator.hardware.models import Model

# Clock, power and temperature of a GPU from NVML, through ctypes: some 20 microseconds a figure, nothing to
# install.
#
# Names and numbers are those of nvml.h. Where the library, the device or a figure is missing, the figure is NaN.

_SM_CLOCK, _MEMORY_CLOCK = 1, 2  # nvmlClockType_t
_GPU_SENSOR = 0  # nvmlTemperatureSensors_t
LIBRARY = "libnvidia-ml.so.1"


class Pulse(NamedTuple):
    """A GPU at one moment: clocks in MHz, power in watts, temperature in degrees Celsius."""

    sm_mhz: float = nan
    memory_mhz: float = nan
    power_w: float = nan
    celsius: float = nan


class Nvml:
    """One GPU, found by its PCI address; every figure is NaN where NVML does not answer."""

    def __init__(self, pci: str, load: Callable[[str], Any] = ctypes.CDLL) -> None:
        self._library: Any = None
        self._handle = ctypes.c_void_p()
        try:
            library = load(LIBRARY)
            if library.nvmlInit_v2() or library.nvmlDeviceGetHandleByPciBusId_v2(
                pci.encode(), ctypes.byref(self._handle)
            ):
                return
        except (OSError, AttributeError):
            return
        self._library = library

    def pulse(self) -> Pulse:
        """The GPU's clocks, power and temperature now."""
        watts = self._ask("nvmlDeviceGetPowerUsage")
        return Pulse(
            self._ask("nvmlDeviceGetClockInfo", _SM_CLOCK),
            self._ask("nvmlDeviceGetClockInfo", _MEMORY_CLOCK),
            watts / 1e3,
            self._ask("nvmlDeviceGetTemperature", _GPU_SENSOR),
        )

    def _ask(self, function: str, *arguments: int) -> float:
        if self._library is None:
            return nan
        value = ctypes.c_uint()
        try:
            failed = getattr(self._library, function)(self._handle, *arguments, ctypes.byref(value))
        except AttributeError:
            return nan
        return nan if failed else float(value.value)


# Device time without the host's: launches are queued behind a kernel that only waits.
#
# Launched kernel by kernel, a step of a few hundred small ones takes as long as Python needs to launch them, which
# is no property of its shape (servers capture such steps in graphs). So a kernel that waits goes first, and the
# mark from which time counts stands behind it: when the device comes to the mark, everything is queued. Whether the
# wait sufficed is seen by the host's own clock; where it did not, the work is done over behind a longer one. A
# queue that is full makes the host wait for the device however long that waits: such work is captured as a graph,
# whose launch is one.

SHORTEST_WAIT_S = 5e-5
LONGEST_WAIT_S = 0.25
SLACK = 1.5  # a wait over the launches that it is meant for
SAFE = 0.9  # of a wait that launches may take


class Stream(Protocol):
    """A device's queue, and the host's clock."""

    def synchronize(self) -> None:
        """Wait until the queue is empty."""

    def wait(self, seconds: float) -> None:
        """Queue a kernel that does nothing for at least so long."""

    def mark(self) -> Any:
        """Queue a mark that keeps the time at which the device comes to it."""

    def between(self, first: Any, last: Any) -> float:
        """Device seconds from one mark to another, waiting for the second."""

    def clock(self) -> float:
        """Seconds of the host."""


class Timed(NamedTuple):
    """Device seconds of some work, what the host took to launch it, and whether that is not in the former."""

    seconds: float
    launch_s: float
    is_hidden: bool


def timed(stream: Stream, work: Callable[[], object], launch_s: float) -> Timed:
    """Time `work`, which may be done over; launching work of its kind took `launch_s` before, 0.0 if not known."""
    wait_s = max(SHORTEST_WAIT_S, SLACK * launch_s)
    found = _behind(stream, work, wait_s)
    if not found.is_hidden:
        found = _behind(stream, work, min(LONGEST_WAIT_S, 2.0 * found.launch_s))
    return found


def _behind(stream: Stream, work: Callable[[], object], wait_s: float) -> Timed:
    stream.synchronize()
    stream.wait(wait_s)
    first = stream.mark()
    begin_s = stream.clock()
    work()
    launch_s = stream.clock() - begin_s
    seconds = stream.between(first, stream.mark())
    return Timed(seconds, launch_s, launch_s < SAFE * wait_s)


class Launches:
    """Time work on a stream, and remember by kind what launching it took: a graph is launched faster than a step."""

    def __init__(self, stream: Stream, capture: Callable[[Callable[[], object]], Callable[[], object]]) -> None:
        self._stream, self._capture = stream, capture
        self._launch_s: dict[str, float] = {}

    def timed(self, work: Callable[[], object], kind: str) -> Timed:
        """Time `work`; as a graph where its launches cannot be hidden otherwise. `launch_s` is that without a graph."""
        found = timed(self._stream, work, self._launch_s.get(kind, 0.0))
        self._launch_s[kind] = min(found.launch_s, LONGEST_WAIT_S / SLACK)
        if found.is_hidden:
            return found
        try:
            replay = self._capture(work)
        except Exception:  # what cannot be captured: an operator that waits for the device
            return found
        return timed(self._stream, replay, 0.0)._replace(launch_s=found.launch_s)


# The device.

Work = TypeVar("Work")

_REFERENCE_RUNS = 9
_LONG_S = 0.05  # of work that is not repeated any more: its time is that much steadier
_SPIN_HZ = 2.2e9  # above the clock of any GPU so far: a wait lasts at least as long as it is meant to


class _CudaStream:
    """`gpu_backend.cuda.Stream`: the current stream."""

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
    """The current CUDA device, timed by events on its stream, launches hidden."""

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
