"""Timing on a device, and what the device can do at most: the copy and the matrix product that it is measured by."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from simulator.engine.clock import no_garbage_collection
from simulator.hardware.gpus import GPUS

REPEATS = 30


@dataclass(frozen=True, slots=True)
class Timing:
    """Median seconds of one call, the spread of the middle half over the median, and how it was measured."""

    seconds: float
    spread: float
    method: str


def measure(calls: Sequence[Callable[[], object]], device: torch.device, repeats: int = REPEATS) -> Timing:
    """Seconds a call: the calls in turn, so that none finds its data in the cache, `repeats` times.

    On a GPU as one CUDA graph, whose replay has no launches of the host between kernels; calls that cannot be captured
    are queued one after another instead ("queued").
    """
    for call in calls:
        call()
    if device.type != "cuda":
        return _summary([_host_seconds(calls) for _ in range(repeats)], len(calls), "host clock")
    torch.cuda.synchronize()
    replay, method = _captured(calls)
    for _ in range(3):
        replay()
    samples = []
    for _ in range(repeats):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call, unused-ignore]  # torch's stubs
        begin.record()
        replay()
        end.record()
        end.synchronize()
        samples.append(begin.elapsed_time(end) / 1000)
    return _summary(samples, len(calls), method)


def _captured(calls: Sequence[Callable[[], object]]) -> tuple[Callable[[], None], str]:
    def queue() -> None:
        for call in calls:
            call()

    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph):
            queue()
    except RuntimeError:
        torch.cuda.synchronize()
        return queue, "queued"
    return graph.replay, "graph"


def _host_seconds(calls: Sequence[Callable[[], object]]) -> float:
    with no_garbage_collection():
        start = time.perf_counter()
        for call in calls:
            call()
        return time.perf_counter() - start


def _summary(samples: Sequence[float], calls: int, method: str) -> Timing:
    low, middle, high = statistics.quantiles(samples, n=4)
    return Timing(middle / calls, (high - low) / middle, method)


@dataclass(frozen=True, slots=True)
class Ceilings:
    """Measured ceilings of a device, bytes counted as read and written; and those that its maker states.

    The maker's numbers are None for a device that is not in the table.
    """

    copy_gb_s: float
    matmul_tflops: float
    peak_gb_s: float | None
    peak_tflops: float | None


def ceilings(device: torch.device, dtype: torch.dtype, *, copy_bytes: int, matmul: int) -> Ceilings:
    """A copy of `copy_bytes` and products of `matmul` square matrices of random numbers."""
    source = torch.empty(copy_bytes // dtype.itemsize, dtype=dtype, device=device).normal_()
    target = torch.empty_like(source)
    copied = measure([lambda: target.copy_(source)], device).seconds
    left, right, out = (torch.randn(matmul, matmul, device=device).to(dtype) for _ in range(3))
    product = measure([lambda: torch.mm(left, right, out=out)], device).seconds
    peak_gb_s, peak_tflops = peaks(device)
    return Ceilings(2 * copy_bytes / copied / 1e9, 2 * matmul**3 / product / 1e12, peak_gb_s, peak_tflops)


def peaks(device: torch.device) -> tuple[float | None, float | None]:
    """The data sheet's bandwidth (GB/s) and bf16 rate (TFLOP/s) of a device whose name holds one of the table's."""
    if device.type != "cuda":
        return None, None
    words = torch.cuda.get_device_name(device).upper().replace("-", " ").split()
    for name, gpu in GPUS.items():
        if name.upper().split("-")[0] in words:
            return gpu.bandwidth_gb_s, gpu.bf16_tflops
    return None, None
