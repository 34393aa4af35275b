"""Open a device for a model, choose its pages, measure it and write the result."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import torch

from gpu_backend.backend import Backend, free_bytes
from gpu_backend.device import Device, open_device
from gpu_backend.executor import DeviceExecutor
from gpu_backend.fp8 import has_fp8_weights, kv_type
from gpu_backend.probes import GRIDS, Grid
from gpu_backend.profiler import Measurements, Memory, Say, profile, write_profile
from gpu_backend.weights import check_model
from simulator.errors import InputError
from simulator.hardware.models import Model
from simulator.lockstep.canary import Canary
from simulator.simulate import KVMemory
from simulator.timing.profile.profile_cost import capture_sizes

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
