"""Tables of experts as JSON (gzipped): a layer's routed experts on one GPU under one version of one engine.

    {"schema": "batchlab expert tables", "version": 1, "name": "h200-vllm-0.24-experts", "gpu": "h200",
     "software": "vLLM 0.24.0", "sources": [...], "rejected": {...}, "errors": {...}, "tokens": [1, 2, 4, ...],
     "precisions": {"mxfp4": {"physics": {"triton": {...}}, "kernels": ["vllm_gptoss..."], "shapes": [
         {"hidden": 2880, "intermediate": 2880, "top_k": 4, "experts": 128,
          "parallel": {"2/1": {"kernel": 0, "balanced": [...], "power_law_1.2": [...]}}}]}}}

`physics` are by `backend_of` the kernels. `parallel` is by GPUs that divide each expert's width / GPUs that divide the
experts. The lists hold 10^3 x log(microseconds) at `tokens`, those of all GPUs that share the experts together; null
where nothing was measured. Names of loads (`balanced`, ...) are the source's: `experts` says what they mean.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from simulator.timing.documents import DocumentKind
from simulator.timing.profile.physics import Physics
from simulator.timing.profile.profile_schema import read_physics
from simulator.timing.profile.surface import Array
from simulator.timing.tables.table_files import VersionTables, header, nearest_versions, unscaled

SCHEMA = "batchlab expert tables"
VERSION = 1
KIND = DocumentKind(SCHEMA, VERSION, "tables of experts", "make tables")
SUFFIX = "-experts.json.gz"
BACKENDS = ("marlin", "triton", "flashinfer_cutlass", "flashinfer_trtllm")


class Cell(NamedTuple):
    """A layer's experts as one GPU holds them: `width` of each expert and `held` of them, of all `experts`."""

    hidden: int
    width: int
    held: int
    experts: int
    top_k: int


@dataclass(frozen=True, slots=True)
class Measured:
    """One cell: the kernel that was measured, and log(microseconds) over tokens by load, NaN where unknown."""

    kernel: str
    log_us: Mapping[str, Array]


@dataclass(frozen=True, slots=True)
class ExpertKernels:
    """The kernels of one precision by cell, and their physics by backend, over `experts.expert_counts`."""

    physics: Mapping[str, Physics]
    cells: Mapping[Cell, Measured]


@dataclass(frozen=True, slots=True, eq=False)
class ExpertTables(VersionTables):
    """All experts by precision; `tokens` are the axis of all lists."""

    tokens: Array
    precisions: Mapping[str, ExpertKernels]


@lru_cache(maxsize=16)
def read_expert_tables(path: Path) -> ExpertTables:
    """Tables from a file. InputError where it cannot be read, or is of another schema or version."""
    return load_expert_tables(KIND.read(path), str(path))


def load_expert_tables(document: object, file: str | None = None) -> ExpertTables:
    """Tables from the parsed JSON; `file` is where errors say it came from."""
    with KIND.opened(document, file) as held:
        tokens = np.asarray(held["tokens"], dtype=np.float64)
        return ExpertTables(
            **header(held),
            tokens=tokens,
            precisions={name: _kernels(part, name, len(tokens)) for name, part in held["precisions"].items()},
        )


def beside(folder: Path, gpu: str, software: str) -> list[ExpertTables]:
    """The tables of that GPU in a folder, those whose version is nearest to `software` first."""
    found = [read_expert_tables(path) for path in sorted(folder.glob(f"{gpu}-*{SUFFIX}"))]
    return nearest_versions(found, gpu, software)


def _kernels(document: dict[str, Any], name: str, size: int) -> ExpertKernels:
    kernels, cells = document["kernels"], {}
    for shape in document["shapes"]:
        experts, wide = int(shape["experts"]), int(shape["intermediate"])
        for parallel, part in shape["parallel"].items():
            tensor, expert = map(int, parallel.split("/"))
            cell = Cell(int(shape["hidden"]), wide // tensor, experts // expert, experts, int(shape["top_k"]))
            loads = {load: _scaled(values, size) for load, values in part.items() if load != "kernel"}
            cells[cell] = Measured(str(kernels[part["kernel"]]), loads)
    return ExpertKernels({backend: read_physics(each, name) for backend, each in document["physics"].items()}, cells)


def backend_of(kernel: str) -> str:
    """vLLM's word (`--moe-backend`) for a kernel that a source names; other for none of them."""
    if kernel == "vllm_fused_moe":
        return "triton"
    return next((name for name in BACKENDS if name in kernel), "other")


def _scaled(values: list[int | None], size: int) -> Array:
    if len(values) != size:
        raise ValueError(f"{len(values)} times for {size} sizes")
    return unscaled(values)
