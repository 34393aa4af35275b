"""The job of one part of a campaign: what it is given, and how it keeps its results."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from gpu_backend.bench import kernel_bench
from gpu_backend.bench.device_checks import kernels_between_give_the_same_logits
from gpu_backend.bench.timing import Ceilings
from gpu_backend.campaign.journal import Section
from gpu_backend.campaign.setting import Setting


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
                found = {"failed": True, "said": kernel_bench.said(error)}
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
    def bench(self) -> kernel_bench.Bench:
        """The kernel benchmark's pages, which go with the part that made them."""
        return kernel_bench.Bench(self.device, *kernel_bench.scale_of(self.device))

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
            raise DeadDeviceError(kernel_bench.said(error)) from None


def write_json(path: Path, data: Any) -> None:
    """A JSON file, whole or not at all."""
    new = path.with_suffix(".new")
    new.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
    new.replace(path)
