"""The setting of a campaign: the device as it names itself, the model, its pages, and all sizes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from calibration.names import gpu_name
from simulator.errors import InputError
from simulator.hardware.gpus import GPUS, Gpu, find_gpu
from simulator.hardware.kv import KVCache, MemorySettings
from simulator.hardware.models import Model, custom_model, find_model

TINY = {
    "layers": 2, "hidden": 64, "intermediate": 96, "heads": 4, "kv_heads": 2, "vocab": 256, "max_model_len": 1024,
    "dtype_bytes": 4, "kv_dtype_bytes": 4,
}  # fmt: skip
STAND_IN = "h200"
"""The GPU whose figures stand for those of a device that the table does not know, or of a CPU."""


@dataclass(frozen=True, slots=True)
class Load:
    """Requests to serve in a lockstep: how many of which traffic, how fast, by which policy, in how many pages."""

    name: str
    traffic: str
    requests: int
    rate: float | None  # requests a second; None: as the trace has them
    policy: str
    given: Mapping[str, object]
    blocks: int | None = None  # fewer than there are, so that requests are preempted
    longest: int | None = None  # prompt and answer; None: the setting's


@dataclass(frozen=True, slots=True)
class Setting:
    """The device's name among ours, its figures, the model on it, and the sizes of what is run."""

    name: str
    gpu: Gpu
    model: Model
    kv: KVCache
    limits: tuple[int, int, int]  # of the profile: decodes, context, tokens of a step
    step_tokens: int  # of a lockstep's largest step
    longest: int
    loads: Sequence[Load]


def name_of(device_name: str) -> str:
    """Our name of a GPU from its driver's ("NVIDIA H100 80GB HBM3"); its own, made plain, where it is another."""
    return gpu_name(device_name) or "-".join(device_name.lower().split())


def setting_of(device: str, fingerprint: Mapping[str, str], model: str = "llama-3.1-8b") -> Setting:
    """The setting of the device at hand. Raises InputError for a device that has no room for the model."""
    if device == "cpu":
        return _of_cpu()
    name, chosen = name_of(fingerprint["device"]), find_model(model)
    # What the device says it has counts, whatever its name: an H100 has no 95 GB for pages.
    gpu = replace(find_gpu(name if name in GPUS else STAND_IN), memory_gib=float(fingerprint["memory_gib"]))
    # Less than a server would take: graphs and scratch memory need room beside it.
    # Host memory is pinned at a few GiB a second, and one load swaps.
    kv = MemorySettings(chosen, gpu, 1, 0.75, 16, 8192).kv_cache(4.0)
    if kv.tokens < 32768:
        raise InputError(f"{model} leaves room for {kv.tokens:,} tokens on {name}", hint="--model qwen3-0.6b")
    limits = {"max_num_seqs": 256, "max_num_batched_tokens": 2048}
    tight = max(2048, kv.num_gpu_blocks // 24)
    loads = (
        Load("azure-chat", "azure-chat", 320, 120.0, "vllm", limits),  # batches of hundreds
        Load("swap", "azure-chat", 60, 40.0, "preemptive", {**limits, "preemption_mode": "swap"}, tight),
        Load("long-context", "long-context", 12, None, "vllm", limits),
    )
    longest = min(chosen.max_model_len, kv.tokens // 2)
    return Setting(name, gpu, chosen, kv, (256, 32768, 8192), 2048, longest, loads)


def _of_cpu() -> Setting:
    """A tiny model, in a minute or two: a rehearsal."""
    model = custom_model(TINY)
    limits = {"max_num_seqs": 8, "max_num_batched_tokens": 64}
    many = {"max_num_seqs": 24, "max_num_batched_tokens": 64}
    loads = (
        Load("azure-chat", "azure-chat", 10, None, "vllm", limits),
        Load("swap", "azure-chat", 40, 1e4, "preemptive", {**many, "preemption_mode": "swap"}, 64, 1000),
        Load("long-context", "long-context", 4, None, "vllm", limits),
    )
    page_bytes = 2 * model.layers * model.kv_heads * model.head_dim * 16 * 4
    return Setting("cpu", find_gpu(STAND_IN), model, KVCache(600, 16, 128, page_bytes), (8, 256, 64), 64, 500, loads)
