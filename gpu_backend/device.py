"""The machine that steps run on: where tensors live, how work is timed, CUDA's events and graphs, its fingerprint."""

from __future__ import annotations

import ctypes
import os
import platform
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from math import nan
from statistics import median
from typing import Any, NamedTuple, Protocol, TypeVar

import torch

from simulator.engine.clock import no_garbage_collection
from simulator.hardware.models import Model

# A CUDA device: events on its stream time the work, and captured graphs launch it at once.

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

_CUDA_REFERENCE_RUNS = 9
_CUDA_LONG_S = 0.05  # of work that is not repeated any more: its time is that much steadier
_SPIN_HZ = 2.2e9  # above the clock of any GPU so far: a wait lasts at least as long as it is meant to


class _CudaStream:
    """`gpu_backend.device.Stream`: the current stream."""

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
            reference_s = median([self._once(canary) for _ in range(_CUDA_REFERENCE_RUNS)])
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
        while len(took) < self.repeats and sum(took) < _CUDA_LONG_S:
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
