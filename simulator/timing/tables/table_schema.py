"""Tables as JSON (gzipped): the kernels of one GPU under one version of one engine, whatever the model.

    {"schema": "batchlab tables", "version": 1, "name": "h100-vllm-0.19", "gpu": "h100", "software": "vLLM 0.19.0",
     "sources": [...], "left_out": {...}, "errors": {...},
     "products": {"bf16": {"axes": [m, n, k], "physics": {...}, "correction": [...]}, ...},
     "decode": [{"head_dim": 128, "kv": "bf16", "window": 0, "axes": [seqs, context], "physics": {...},
                 "heads": {"32/8": [...], ...}}, ...],
     "prompt": [the same with axes [chunks, each]],
     "all_reduce": {"2": {"bytes": [...], "us": [...]}, ...}}

Heads are query heads / KV heads of one GPU. `correction` is 10^3 x log(measured / physics), and the lists of heads are
10^3 x log(microseconds), rounded, the last axis fastest; null where nothing was measured. A window of 0 is none. The
features of the physics are those of `products` and `attention`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from simulator.timing.documents import DocumentKind
from simulator.timing.profile.physics import Physics
from simulator.timing.profile.profile_schema import read_axis, read_physics
from simulator.timing.profile.surface import Array, Surface, SurfaceAxis, flat
from simulator.timing.tables.grid import fill, steadiness
from simulator.timing.tables.table_files import VersionTables, header, unscaled

SCHEMA = "batchlab tables"
VERSION = 1
KIND = DocumentKind(SCHEMA, VERSION, "tables", "batchlab calibrate tables")
Heads = tuple[int, int]  # query heads and KV heads of one GPU


@dataclass(frozen=True, slots=True)
class HeadTable:
    """One kind of attention (decodes or prompts) for heads of one width, one KV precision, one window (0: none).

    `log_us` is log(microseconds) over both axes, NaN where not measured; of another window if the table is `estimated`.
    """

    head_dim: int
    kv_dtype: str
    window: int
    axes: tuple[SurfaceAxis, SurfaceAxis]
    physics: Physics
    log_us: Mapping[Heads, Array]
    estimated: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Tables(VersionTables):
    """All kernels of a GPU under a version of an engine. `products` and `all_reduce` by precision and GPUs."""

    products: Mapping[str, Surface]
    decode: tuple[HeadTable, ...]
    prompt: tuple[HeadTable, ...]
    all_reduce: Mapping[int, tuple[Array, Array]]
    folder: Path | None = None  # where they lie, beside tables of experts


@lru_cache(maxsize=16)
def read_tables(path: Path) -> Tables:
    """Tables from a file. InputError where it cannot be read, or is of another schema or version."""
    return replace(load_tables(KIND.read(path), str(path)), folder=path.parent)


def load_tables(document: object, file: str | None = None) -> Tables:
    """Tables from the parsed JSON; `file` is where errors say it came from."""
    with KIND.opened(document, file) as held:
        return Tables(
            **header(held),
            products={name: _products(part, name) for name, part in held["products"].items()},
            decode=tuple(_heads(part, "decode") for part in held["decode"]),
            prompt=tuple(_heads(part, "prompt") for part in held["prompt"]),
            all_reduce={
                int(ranks): (np.asarray(part["bytes"], float), np.asarray(part["us"], float))
                for ranks, part in held["all_reduce"].items()
            },
        )


def _products(document: dict[str, Any], name: str) -> Surface:
    axes = tuple(read_axis(axis, name) for axis in document["axes"])
    shape = tuple(len(axis.values) for axis in axes)
    table = unscaled(document["correction"]).reshape(shape)
    return Surface(axes, read_physics(document["physics"], name), flat(fill(table, steadiness(table))))


def _heads(document: dict[str, Any], name: str) -> HeadTable:
    first, second = (read_axis(axis, name) for axis in document["axes"])
    shape = (len(first.values), len(second.values))
    found: dict[Heads, Array] = {}
    for key, values in document["heads"].items():
        heads, kv_heads = map(int, key.split("/"))
        found[heads, kv_heads] = unscaled(values).reshape(shape)
    return HeadTable(
        head_dim=int(document["head_dim"]),
        kv_dtype=str(document["kv"]),
        window=int(document["window"]),
        axes=(first, second),
        physics=read_physics(document["physics"], name),
        log_us=found,
    )
