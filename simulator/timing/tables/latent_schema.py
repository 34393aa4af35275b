"""Tables of multi-head latent attention as JSON (gzipped), beside the GPU's other tables: NAME-latent.json.gz.

    {"schema": "batchlab latent tables", "version": 1, "name": "h200-vllm-0.24", "gpu": "h200", "software": "vLLM ...",
     "sources": [...], "rejected": {...}, "errors": {...},
     "dimensions": {"hidden": 7168, "q_lora_rank": 1536, "kv_lora_rank": 512, "rope_head_dim": 64, "head_dim": 128},
     "decode": [{"dtype": "fp8_block", "kv": "bf16", "kernels": ["FLASH_ATTN_MLA"], "axes": [seqs, context],
                 "heads": {"16": {"physics": {...}, "us": [...]}, ...}}, ...],
     "prompt": [the same with axes [chunks, each]]}

What is timed is the whole attention module of a layer (`calibration.makers.latent` says what that is), for so many
heads of one GPU. `us` is 10^3 x log(microseconds), rounded, the last axis fastest; null where nothing was measured.
The features of the physics are those of `simulator.timing.profile.counts`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulator.timing.documents import DocumentKind
from simulator.timing.profile.physics import Physics
from simulator.timing.profile.profile_schema import read_axis, read_physics
from simulator.timing.profile.surface import Array, SurfaceAxis, mesh
from simulator.timing.tables.grid import fill, steadiness
from simulator.timing.tables.table_files import VersionTables, header, unscaled

SCHEMA = "batchlab latent tables"
VERSION = 1
KIND = DocumentKind(SCHEMA, VERSION, "latent tables", "make tables")
SUFFIX = "-latent"  # between the name of a GPU's tables and `.json.gz`
MEASURED_FOR = ("hidden", "q_lora_rank", "kv_lora_rank", "rope_head_dim", "head_dim", "index_topk")
"""The dimensions that a module's time depends on, its heads apart."""


@dataclass(frozen=True, slots=True)
class Module:
    """The attention module for so many heads: its physics, and log(microseconds) over both axes, its holes filled."""

    physics: Physics
    log_us: Array
    measured: NDArray[np.bool_]  # False at what were holes


@dataclass(frozen=True, slots=True)
class Modules:
    """The module for decodes or for prompts, with projections of one precision and a KV cache of one; by heads."""

    dtype: str
    kv_dtype: str
    kernels: tuple[str, ...]
    axes: tuple[SurfaceAxis, SurfaceAxis]
    by_heads: Mapping[int, Module]


@dataclass(frozen=True, slots=True, eq=False)
class LatentTables(VersionTables):
    """Latent attention for a model of these `dimensions`."""

    dimensions: Mapping[str, int]
    decode: tuple[Modules, ...]
    prompt: tuple[Modules, ...]


@lru_cache(maxsize=16)
def read_latent(path: Path) -> LatentTables:
    """Latent tables from a file. InputError where it cannot be read, or is of another schema or version."""
    return load_latent(KIND.read(path), str(path))


def load_latent(document: object, file: str | None = None) -> LatentTables:
    """Latent tables from the parsed JSON; `file` is where errors say it came from."""
    with KIND.opened(document, file) as held:
        return LatentTables(
            **header(held),
            dimensions={name: int(held["dimensions"].get(name, 0)) for name in MEASURED_FOR},
            decode=tuple(_modules(part, "latent decode") for part in held["decode"]),
            prompt=tuple(_modules(part, "latent prompt") for part in held["prompt"]),
        )


def _modules(document: dict[str, Any], name: str) -> Modules:
    first, second = (read_axis(axis, name) for axis in document["axes"])
    shape = (len(first.values), len(second.values))
    found: dict[int, Module] = {}
    for heads, part in document["heads"].items():
        physics = read_physics(part["physics"], name)
        measured = unscaled(part["us"]).reshape(shape)
        found[int(heads)] = Module(physics, filled((first, second), physics, measured), ~np.isnan(measured))
    return Modules(
        dtype=str(document["dtype"]),
        kv_dtype=str(document["kv"]),
        kernels=tuple(map(str, document["kernels"])),
        axes=(first, second),
        by_heads=dict(sorted(found.items())),
    )


def filled(axes: tuple[SurfaceAxis, SurfaceAxis], physics: Physics, log_us: Array) -> Array:
    """log(microseconds) with its holes filled: the physics there, corrected as their neighbours are."""
    base = np.log(np.asarray(physics.us(module_features(axes)), dtype=np.float64))
    residual = log_us - base
    return np.asarray(base + fill(residual, steadiness(residual)))


def module_features(axes: tuple[SurfaceAxis, SurfaceAxis]) -> dict[str, Array]:
    """The counts at the places of a table."""
    return counts(axes[0].name == "seqs", *mesh(axes))


def counts(decodes: bool, first: Array, second: Array) -> dict[str, Array]:
    """The work of equal decodes (how many, context), or of equal fresh prompts (how many, tokens of each)."""
    if decodes:
        return {"seqs": first, "keys": first * second, "chain": second}
    return {"tokens": first * second, "pairs": 0.5 * first * second * (second + 1.0), "chain": second}
