"""The job of one part of a campaign: its setting, its journal, and how it keeps its results."""

import json
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from calibration.rows import gpu_name
from simulator.errors import InputError
from simulator.hardware.gpus import GPUS, Gpu, find_gpu
from simulator.hardware.kv import KVCache, MemorySettings
from simulator.hardware.models import Model, custom_model, find_model
from tools.kernel_bench import speed
from tools.kernel_bench.device_checks import kernels_between_give_the_same_logits
from tools.kernel_bench.speed import Ceilings

# The setting of a campaign: the device as it names itself, the model, its pages, and all sizes.

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


# The results of a campaign: a JSON line each, on disk before the next begins. It goes on wherever it was killed.

MOST_TRIES = 2
"""Times that something is begun: what ended the process twice is left out."""


class Journal:
    """A file of results by key. The last entry of a key counts; a last line that was cut off does not."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._found: dict[str, dict[str, Any]] = {}
        self._begun: dict[str, int] = {}
        if path.exists():
            data = path.read_bytes()
            whole = data.rfind(b"\n") + 1
            for line in data[:whole].splitlines():
                self._take(json.loads(line))
            os.truncate(path, whole)

    def _take(self, entry: Mapping[str, Any]) -> None:
        if "begun" in entry:
            self._begun[entry["key"]] = int(entry["begun"])
        else:
            self._found[entry["key"]] = dict(entry["found"])

    def recall(self, key: str) -> dict[str, Any] | None:
        """The result under the key; None where there is none."""
        return self._found.get(key)

    def keep(self, key: str, found: Mapping[str, Any]) -> None:
        """Write it, and make sure that it is on the disk."""
        self._write({"key": key, "found": dict(found)})

    def begin(self, key: str) -> bool:
        """Note that this is begun; False where it was begun too often already, without a result."""
        tries = self._begun.get(key, 0)
        if tries >= MOST_TRIES:
            return False
        self._write({"key": key, "begun": tries + 1})
        return True

    def keys(self, prefix: str) -> Iterator[str]:
        """Keys that begin so, in the order in which they were first found."""
        return (key for key in self._found if key.startswith(prefix))

    def _write(self, entry: dict[str, Any]) -> None:
        self._take(entry)
        with self._path.open("ab") as file:
            file.write(json.dumps(entry).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())


class Section:
    """The part of a journal that belongs to one part of the campaign, and that part's time.

    A `gpu_backend.session.Memory`.
    """

    def __init__(self, journal: Journal, name: str, seconds: float) -> None:
        self._journal, self.name = journal, name
        self._end_s = time.monotonic() + seconds

    @property
    def left_s(self) -> float:
        """Seconds that the part still has."""
        return self._end_s - time.monotonic()

    def is_over(self) -> bool:
        """True if the part's time is over."""
        return self.left_s <= 0

    def recall(self, key: str) -> dict[str, Any] | None:
        """The result under the key in this part."""
        return self._journal.recall(f"{self.name}: {key}")

    def keep(self, key: str, found: Mapping[str, Any]) -> None:
        """Keep it for good, at once."""
        self._journal.keep(f"{self.name}: {key}", found)

    def begin(self, key: str) -> bool:
        """As `Journal.begin`."""
        return self._journal.begin(f"{self.name}: {key}")

    def all(self) -> dict[str, dict[str, Any]]:
        """Everything that the part has found, by key."""
        start = f"{self.name}: "
        found = {key: self._journal.recall(key) for key in self._journal.keys(start)}
        return {key.removeprefix(start): value for key, value in found.items() if value is not None}


# The job of one part of a campaign: what it is given, and how it keeps its results.


@dataclass
class Job:
    """The input of every part: the device, the setting, the folder, its section of the journal, and a voice."""

    device: str
    setting: Setting
    out: Path
    section: Section
    say: Callable[[str], None]

    def write(self, name: str, data: Any) -> None:
        """A JSON file of the campaign, whole or not at all."""
        write_json(self.out / name, data)

    def once(self, key: str, find: Callable[[], Mapping[str, Any]]) -> dict[str, Any] | None:
        """The result of `find` under that key, now or earlier; None where there is no time for it.

        Whatever it raises is what was found: it costs this key alone.
        """
        found = self.section.recall(key)
        if found is not None:
            return found
        if self.section.is_over():
            return None
        if not self.section.begin(key):
            found = {"failed": True, "said": "it ended the process twice"}
        else:
            try:
                found = dict(find())
            except Exception as error:
                found = {"failed": True, "said": speed.said(error)}
        self.section.keep(key, found)
        if found.get("failed"):
            self.say(f"{key}: {found.get('said') or found.get('skipped')}")
            check_alive(self.device)
        return found

    @property
    def pointwise(self) -> str | None:
        """torch's operators where their kernels were found wrong; else what the device uses."""
        path = self.out / "checks.json"
        seen = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
        return "torch" if seen.get(kernels_between_give_the_same_logits.__name__, {}).get("failed") else None

    @cached_property
    def bench(self) -> speed.Bench:
        """The kernel benchmark's pages, which go with the part that made them."""
        return speed.Bench(self.device, *speed.scale_of(self.device))

    def ceilings(self) -> Ceilings:
        """The device's measured ceilings, or its maker's where none were measured."""
        path = self.out / "ceilings.json"
        if path.exists():
            return Ceilings(**json.loads(path.read_text(encoding="utf-8")))
        gpu = self.setting.gpu
        return Ceilings(gpu.bandwidth_gb_s, gpu.bf16_tflops, gpu.bandwidth_gb_s, gpu.bf16_tflops)


class DeadDeviceError(Exception):
    """The device answers nothing any more in this process; a new one may go on."""


def check_alive(device: str) -> None:
    """Raise DeadDeviceError where a kernel has broken the process's hold on the device."""
    if device == "cuda":
        try:
            torch.cuda.synchronize()
            torch.ones(1, device="cuda").sum().item()
        except Exception as error:
            raise DeadDeviceError(speed.said(error)) from None


def write_json(path: Path, data: Any) -> None:
    """A JSON file, whole or not at all."""
    new = path.with_suffix(".new")
    new.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
    new.replace(path)
