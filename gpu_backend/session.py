"""Open a device for a model, choose its pages, measure it in shuffled passes, and write the result."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from statistics import mean, median
from typing import Any, Protocol

import numpy as np
import torch

from gpu_backend.backend import EAGER, GRAPH, Backend, free_bytes
from gpu_backend.device import STEADY, Device, open_device
from gpu_backend.executor import DeviceExecutor
from gpu_backend.probes import GRIDS, Controls, Grid, Probe, Probes, control_steps
from gpu_backend.weights import check_model, has_fp8_weights, kv_type
from gpu_backend.work import Swap
from simulator.errors import InputError
from simulator.hardware.models import Model
from simulator.lockstep.lockstep_run import Canary, ControlStep, Readings
from simulator.simulate import KVMemory
from simulator.timing.profile.profile_cost import capture_sizes

# Measure a device: shapes in shuffled passes, a canary among them; and write the files of the result.
#
# `rows.jsonl.gz` holds the rows that `batchlab calibrate fit` reads; `calibration.rows` tells its format. Beside
# it, `measured.json` says what the device is, how steady it was, what the host takes for a step, and what swapping
# costs. Where the canary had drifted, what was measured beside it does not count; a row that was measured only so
# is kept, and flagged for the fit.

PASSES = 3
CANARY_EVERY = 20  # shapes

ROWS, MEASURED = "rows.jsonl.gz", "measured.json"

Say = Callable[[str], None]  # a function that tells the user how the work goes


class Memory(Protocol):
    """Measurements of an earlier call, and the place where this call keeps its own."""

    def recall(self, key: str) -> Mapping[str, Any] | None:
        """The value kept under the key; None where there is none."""
        return None

    def keep(self, key: str, found: Mapping[str, Any]) -> None:
        """Keep it for good, at once."""

    def is_over(self) -> bool:
        """Tell whether there is no time for more."""
        return False


class NoMemory(Memory):
    """A memory that knows and keeps nothing, and never runs out of time."""

    def keep(self, key: str, found: Mapping[str, Any]) -> None: ...


@dataclass(frozen=True, slots=True)
class SwapRow:
    """Pages moved: `us` alone, and `beside_us` for the step that ran beside them, where the device can."""

    direction: str  # out | in
    blocks: int
    us: float
    beside_us: float | None = None


@dataclass(frozen=True, slots=True)
class Reading:
    """A shape's microseconds in one pass, and the canary beside it (over its reference; of the two nearest, the one
    further off). `is_hidden`: the host's launches are not in it."""

    us: float
    canary: float
    is_hidden: bool = True


@dataclass(slots=True)
class Measurements:
    """A measured profile: a row for each probe, and the readings that it comes from, one for each pass."""

    rows: list[dict[str, Any]]
    readings: list[list[Reading]]
    canary: Canary
    host: dict[str, float]
    swap: list[SwapRow]
    fingerprint: dict[str, str]
    health: list[dict[str, float]] = field(default_factory=list)

    @property
    def drift(self) -> float:
        """The canary's largest distance from its reference, as a fraction."""
        return max((reading.canary for each in self.readings for reading in each), key=lambda c: abs(c - 1.0)) - 1.0

    @property
    def floor(self) -> float:
        """The mean distance of a pass from the median of all, as a fraction: the noise of a shape's figure."""
        repeated = [[reading.us for reading in each] for each in self.readings if len(each) > 1]
        apart = [abs(us / median(each) - 1.0) for each in repeated for us in each]
        return mean(apart) if apart else 0.0

    @property
    def flagged(self) -> int:
        """Rows that were measured beside a drifting canary only."""
        return sum(bool(row.get("flagged")) for row in self.rows)

    def swap_s_per_block(self) -> float | None:
        """Mean seconds to move a page, either way, in moves of many."""
        each = [row.us / row.blocks for row in self.swap if row.blocks >= 4]
        return mean(each) * 1e-6 if each else None


def profile(
    backend: Backend,
    grid: Grid,
    *,
    kernels: bool = True,
    seed: int = 0,
    memory: Memory | None = None,
    say: Say = lambda text: None,
) -> Measurements:
    """Measure the backend: every probe three times, in another order each time. `say` is told how it goes.

    Without `kernels`, whole steps only. What `memory` knows is not measured again; when its time is over, what has been
    measured is the result.
    """
    device, memory = backend.device, memory or NoMemory()
    probes = Probes(backend, grid, seed)
    listed = probes.all() if kernels else list(probes.steps())
    say(f"{len(listed)} shapes, {PASSES} times each")
    backend.warm_up(grid.max_num_seqs, grid.max_num_batched_tokens)
    known = memory.recall("canary")
    reference_s = device.watch(backend.canary(), None if known is None else float(known["s"]))
    if known is None:
        memory.keep("canary", {"s": reference_s})
    random = np.random.default_rng(seed)
    seen = _Beside(control_steps(grid), backend)
    readings: list[list[Reading]] = [[] for _ in listed]
    health = [device.health()]
    for number in range(PASSES):
        order = random.permutation(len(listed)).tolist()
        for index, reading in _pass(device, listed, order, number, seen, memory, say):
            readings[index].append(reading)
        health.append(device.health())
        if memory.is_over():
            say(f"time is up in pass {number + 1} of {PASSES}")
            break
        say(f"pass {number + 1} of {PASSES} done")
    limit = STEADY[device.name]
    host = _host(backend, probes, grid)
    swap = [] if memory.is_over() else list(_swaps(backend, probes))
    return Measurements(
        _rows(listed, readings, limit),
        [each for each in readings if each],
        Canary(backend.canary_name, reference_s, *seen.summed(limit)),
        host,
        swap,
        {**device.fingerprint(), **backend.kernels},
        health,
    )


class _Beside:
    """Times taken beside the shapes: the canary's and the controls'."""

    def __init__(self, steps: Mapping[str, ControlStep], backend: Backend) -> None:
        self.steps = steps
        self.controls = Controls(backend, steps)
        self.stretches: list[Mapping[str, Any]] = []

    def summed(self, limit: float) -> tuple[Readings, dict[str, tuple[ControlStep, Readings]]]:
        """The canary over its reference, and each control's seconds: in steady stretches, or in all if none was.

        A journal of an earlier version has neither.
        """
        told = [each for each in self.stretches if "beside" in each]
        steady = [each for each in told if abs(each["canary"] - 1.0) <= limit] or told
        canary = Readings.of([float(each["beside"]) for each in steady] or [1.0])
        took = {name: [each["controls"][name] for each in steady if name in each["controls"]] for name in self.steps}
        return canary, {name: (self.steps[name], Readings.of(each)) for name, each in took.items() if each}


def _pass(
    device: Device, listed: Sequence[Probe], order: Sequence[int], number: int, seen: _Beside, memory: Memory, say: Say
) -> Iterator[tuple[int, Reading]]:
    """Measure one pass, in stretches between two canaries; each stretch is kept."""
    for start in range(0, len(order), CANARY_EVERY):
        if memory.is_over():
            return
        stretch = order[start : start + CANARY_EVERY]
        key = f"pass {number}, from {start} of {len(order)}"
        found = memory.recall(key)
        if found is None:
            before = device.check()
            us, exposed, beside = [], [], []
            for place, index in enumerate(stretch):
                us.append(_tried(device, listed[index], say))
                exposed += [] if device.is_hidden else [place]
                beside.append(device.canary)
            controls = seen.controls.timed()
            canary = max(before, device.check(), key=lambda reading: abs(reading - 1.0))
            found = {"us": us, "canary": round(canary, 5), "exposed": exposed, "controls": controls}
            found["beside"] = round(median(beside), 5)
            memory.keep(key, found)
        seen.stretches.append(found)
        for place, (index, each) in enumerate(zip(stretch, found["us"], strict=True)):
            if each is None:
                continue
            yield index, Reading(float(each), float(found["canary"]), place not in found.get("exposed", ()))


def _tried(device: Device, probe: Probe, say: Say) -> float | None:
    """Time a probe like `_us`; None where it fails: the others go on. A device that is lost raises its next error."""
    try:
        return round(_us(device, probe), 4)
    except Exception as error:
        say(f"{probe.kind} {dict(probe.columns)} failed: {type(error).__name__}: {error}"[:300])
    device.check()
    return None


def _us(device: Device, probe: Probe) -> float:
    """Time a probe. Kernels are captured: launched singly, a small one would take as long as its launch on the host."""
    work = probe.make()
    kind = probe.kind
    if kind == "step":
        kind = EAGER if probe.columns.get("prefill_tokens") else GRAPH
    elif kind != "experts":
        kind, work = "kernel", device.capture(work)
    return device.seconds(work, kind) * 1e6 / probe.of


def _rows(probes: Sequence[Probe], readings: Sequence[Sequence[Reading]], limit: float) -> list[dict[str, Any]]:
    """Make a row of each measured probe, the median of its steady readings; flagged where it has none.

    A skewed batch has its even one measured right after it, whose time is its `equal_us`.
    """
    rows: list[dict[str, Any]] = []
    for (probe, mine), (_, after) in pairwise([*zip(probes, readings, strict=True), (probes[0], [])]):
        if not mine or (probe.kind == "skew" and not after):
            continue
        us, is_steady = _figure(mine, limit)
        row: dict[str, Any] = {"kind": probe.kind, **probe.columns, "us": round(us, 3)}
        if probe.kind == "skew":
            equal_us, even_is_steady = _figure(after, limit)
            row["equal_us"] = round(equal_us, 3)
            is_steady = is_steady and even_is_steady
        if not is_steady:
            row["flagged"] = True
        rows.append(row)
    return rows


def _figure(readings: Sequence[Reading], limit: float) -> tuple[float, bool]:
    """Return microseconds, and whether any reading was steady."""
    steady = [reading.us for reading in readings if reading.is_hidden and abs(reading.canary - 1.0) <= limit]
    return median(steady or [reading.us for reading in readings]), bool(steady)


def _host(backend: Backend, probes: Probes, grid: Grid) -> dict[str, float]:
    """Seconds that the host takes to prepare a step, as a line over its requests."""
    device = backend.device
    sizes = sorted({1, max(1, grid.max_num_seqs // 4), grid.max_num_seqs})
    took = []
    for seqs in sizes:
        work = probes.work([32] * seqs, [])
        times = []
        for _ in range(5):
            start_s = device.host_s()
            backend.forward(work)
            times.append(device.host_s() - start_s)
        took.append(median(times))
    slope, first = np.polyfit(sizes, took, 1) if len(sizes) > 1 else (0.0, took[0])
    return {"step_s": max(0.0, float(first)), "seq_s": max(0.0, float(slope))}


def _swaps(backend: Backend, probes: Probes) -> Iterator[SwapRow]:
    """Pages moved out and in, by their number, with and without a step beside them."""
    pool, device = backend.pool, backend.device
    most = min(pool.num_blocks, len(pool.host))
    step = probes.canary()
    for blocks in [count for count in (1, 4, 16, 64, 256, 1024) if count <= most]:
        swap = Swap(tuple(range(1, blocks + 1)), tuple(range(blocks)))
        back = Swap(swap.target, swap.source)
        for direction, move in (("out", pool.moving_out(swap)), ("in", pool.moving_in(back))):
            move()
            us = device.seconds(move, "swap") * 1e6
            beside = device.beside(step.make(), move)
            yield SwapRow(direction, blocks, us, None if beside is None else beside * 1e6)


def write_profile(folder: Path, found: Measurements, header: dict[str, Any]) -> None:
    """Write the rows and what was seen beside them. `header` names device, GPU, model, dtype, kv_dtype."""
    folder.mkdir(parents=True, exist_ok=True)
    canary = found.canary.to_json()
    seen = {
        "fingerprint": found.fingerprint,
        "health": found.health,
        "canary": {**canary, "drift": round(found.drift, 4), "limit": STEADY[header["device"]]},
        "flagged": found.flagged,
        "floor": round(found.floor, 4),
        "host": found.host,
        "swap_s_per_block": found.swap_s_per_block(),
        "swap": [asdict(row) for row in found.swap],
        **header,
    }
    (folder / MEASURED).write_text(json.dumps(seen, indent=1) + "\n", encoding="utf-8")
    first = {
        "schema": "batchlab rows",
        "version": 1,
        "gpu": header["gpu"],
        "model": header["model"],
        "tensor_parallel": 1,
        "dtype": header["dtype"],
        "kv_dtype": header.get("kv_dtype", ""),
        "software": f"torch {found.fingerprint['torch']}, attention {found.fingerprint['attention']}",
        "sources": [{"source": "batchlab calibrate measure", **found.fingerprint, "canary": canary}],
    }
    lines = [json.dumps(first), *(json.dumps(row) for row in found.rows)]
    (folder / ROWS).write_bytes(gzip.compress(("\n".join(lines) + "\n").encode(), mtime=0))


_CPU_POOL_BYTES = 512 * 2**20
MAX_CAPTURE = 256
HEAT_S = 3.0  # seconds for which a GPU works before it is timed
_SWAP_BYTES = 2**30  # pinned on the host, for the swap rows


def open_backend(
    model: Model,
    device: Device,
    block_size: int,
    *,
    layers: int | None = None,
    seed: int = 0,
    attention: str | None = None,
    pointwise: str | None = None,
) -> Backend:
    """Put the model on the device, with as many pages as there is room for; on a CPU with half a GiB of them."""
    cut = model if layers is None else replace(model, layers=layers)
    check_model(model)
    page = page_bytes(cut, device, block_size)
    room = _CPU_POOL_BYTES
    check_room(device, cut, room)
    if device.name == "cuda":
        room = int(0.85 * free_bytes()) - held_bytes(cut, device)
    host_blocks = max(16, min(_SWAP_BYTES, room // 4) // page)
    return Backend(
        model, device, max(64, room // page), block_size, host_blocks,
        layers=layers, seed=seed, attention=attention, pointwise=pointwise, graphs=graph_sizes(device),
    )  # fmt: skip


def page_bytes(model: Model, device: Device, block_size: int) -> int:
    """Bytes of one page on the device: all layers."""
    width = 2 * model.kv_heads * model.head_dim * block_size
    return model.layers * width * int(kv_type(model, device.dtype(model)).itemsize)


def held_bytes(model: Model, device: Device) -> int:
    """Bytes of the weights on the device. Embedding and head are never in fp8."""
    itemsize = int(device.dtype(model).itemsize)
    if not has_fp8_weights(model):
        return model.num_parameters * itemsize
    tables = (1 if model.tie_embeddings else 2) * model.table_parameters()
    return model.num_parameters + tables * (itemsize - 1)


def check_room(device: Device, model: Model, pool_bytes: int) -> None:
    """Raise InputError where weights and pages do not fit into the memory of a CPU's machine."""
    if device.name != "cpu":
        return  # a CUDA device refuses by itself, and at once
    needed, there = held_bytes(model, device) + pool_bytes, available_bytes()
    if there is not None and needed > there:
        what = f"{model.name} needs {needed / 2**30:.1f} GiB here with its pages, and {there / 2**30:.1f} GiB are free"
        raise InputError(what, hint="--layers N, a smaller model or hardware.num_gpu_blocks, or --device cuda")


def available_bytes() -> int | None:
    """Read how many bytes of memory this machine can still give; None where it does not say."""
    with suppress(OSError, ValueError), Path("/proc/meminfo").open(encoding="ascii") as lines:
        for line in lines:
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    return None


def graph_sizes(device: Device) -> list[int]:
    """The batch sizes to capture: vLLM's, on a CUDA device."""
    return capture_sizes(MAX_CAPTURE) if device.name == "cuda" else []


def executors(
    model: Model,
    device: str,
    kv: KVMemory,
    *,
    layers: int | None = None,
    seed: int = 0,
    repeats: int | None = None,
    attention: str | None = None,
    pointwise: str | None = None,
    largest: tuple[int, int] = (1, 64),
    canary: Canary | None = None,
    debug: bool = False,
) -> tuple[Callable[[], DeviceExecutor], dict[str, str]]:
    """Return a factory of a model's executors over the pages of `kv`, and the device's fingerprint.

    The executors share one backend, so they serve one after the other. A step is executed `repeats` times for one
    figure, or as often as is usual on the device. `largest` are the most requests and tokens of a step: all kernels and
    that step run before anything is timed. `canary` is what a profile was measured beside: times are then in its terms,
    and its controls are timed now and then. Raises InputError for pages that the device has no room for.
    """
    opened = open_device(device, repeats)
    cut = model if layers is None else replace(model, layers=layers)
    check_model(model)
    check_room(opened, cut, (kv.num_gpu_blocks + kv.num_host_blocks) * page_bytes(cut, opened, kv.block_size))
    try:
        backend = Backend(
            model, opened, kv.num_gpu_blocks - 1, kv.block_size, kv.num_host_blocks,
            layers=layers, seed=seed, attention=attention, pointwise=pointwise, graphs=graph_sizes(opened),
        )  # fmt: skip
        backend.warm_up(*largest)
    except (torch.OutOfMemoryError, RuntimeError) as error:
        if "memory" not in str(error):
            raise
        what = f"{kv.num_gpu_blocks:,} blocks of {kv.block_size} tokens do not fit beside the weights of {model.name}"
        raise InputError(what, hint="hardware.num_gpu_blocks, hardware.swap_space_gib, or --layers") from None
    opened.heat(HEAT_S)
    then = canary if canary is not None and canary.of == backend.canary_name else None
    reference_s = opened.watch(backend.canary(), None if then is None else then.reference_s)
    told = {**opened.fingerprint(), **backend.kernels, "canary_us": f"{reference_s * 1e6:.1f}"}
    began = 1.0
    if then is not None:
        began = opened.check() if then.controls else 1.0
        told["canary_then"] = f"{then.seen.median:.3f} of that, its middle half within {then.seen.spread:.1%}"
        told["canary_now"] = f"{began:.3f} of that"
    return lambda: DeviceExecutor(backend, seed=seed, debug=debug, then=then, began=began), told


def measure_into(
    folder: Path,
    model: Model,
    device: str,
    *,
    layers: int | None = None,
    limits: tuple[int | None, int | None, int | None] = (None, None, None),
    block_size: int = 16,
    gpu: str = "",
    steps_only: bool = False,
    attention: str | None = None,
    pointwise: str | None = None,
    memory: Memory | None = None,
    say: Say = lambda text: None,
) -> Measurements:
    """Measure the model on the device and write rows.jsonl.gz and measured.json into the folder.

    `limits` are those of the grid (decodes, context, tokens of a step): None for what is usual on the device.
    """
    opened = open_device(device, repeats=3 if device == "cuda" else None)
    backend = open_backend(model, opened, block_size, layers=layers, attention=attention, pointwise=pointwise)
    opened.heat(HEAT_S)
    usual, (seqs, context, tokens) = GRIDS[device], limits
    context = min(context or usual.max_context, model.max_model_len)
    grid = Grid(seqs or usual.max_num_seqs, context, tokens or usual.max_num_batched_tokens)
    found = profile(backend, grid, kernels=not steps_only, memory=memory, say=say)
    header = {"device": device, "gpu": gpu, "model": model.name, "layers": backend.model.layers}
    header |= {"block_size": block_size, **dict(zip(("dtype", "kv_dtype"), backend.precision, strict=True))}
    write_profile(folder, found, header)
    return found
