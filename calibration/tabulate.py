"""Make a GPU's tables under one version of an engine from aiconfigurator's parquet files: thinned, coded, tested.

Products keep all widths, and of the rows (m) about half (`M`): one just above each full tile, where the times jump.
Attention keeps all heads, batches and contexts, which are doublings already. Fractions below a thousandth go.
Rows are brought to a cold cache, and those that are faster than the GPU can be, or were disturbed, are left out
(`calibration.tables_rows`). So are precisions whose smallest products take `LAUNCHES_US` and more: then launches were
timed, one by one, and not the kernels that run in a CUDA graph (`use_cuda_graph=gemm_type != "fp8_block"` in
aiconfigurator's collector/vllm/collect_gemm.py).
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from calibration.document import of_axis, of_physics
from calibration.kernels import gemm_kernel, stands_for
from calibration.names import gpu_name
from calibration.physics_fit import Shape, fit_physics
from calibration.sources.aiconfigurator import (
    AICONFIGURATOR,
    AICONFIGURATOR_CORE,
    BF16_BYTES,
    FAMILIES,
    SCALES,
    Source,
    parquet,
)
from calibration.surface_fit import on_grid
from calibration.tables_errors import errors_of
from calibration.tables_rows import PRECISIONS, attention_rows, product_rows, with_static_scales
from simulator.hardware.gpus import find_gpu
from simulator.timing.profile.surface import Array, SurfaceAxis
from simulator.timing.tables.attention import decode_counts, prompt_counts
from simulator.timing.tables.products import WEIGHT_BYTES, product_features
from simulator.timing.tables.table_files import SCALE
from simulator.timing.tables.table_schema import SCHEMA, VERSION, load_tables

if TYPE_CHECKING:
    import pandas as pd


M = (
    1, 2, 4, 8, 16, 17, 32, 48, 64, 65, 80, 96, 112, 128, 129, 160, 192, 224, 256, 257, 384, 512, 513, 768, 769, 1024,
    1025, 1280, 1281, 1536, 1537, 2048, 2049, 2304, 2305, 2560, 2561, 3072, 3073, 3584, 3585, 4096, 4097, 8192, 16384,
)  # fmt: skip
"""Sizes of m that are kept where they were measured; of n and k, all are."""

SMALLEST = 256  # products narrower than this, in n or k, are not kept
LAUNCHES_US = 30.0  # a kernel so small (up to 16 rows, 2,048 columns) takes 2 to 15 us in a graph

DECODE = Shape(("items",), (("keys",), ("chain",)))
PROMPT = Shape(("tiles",), (("pairs", "tokens"), ("chain",)))


def tabulate(source: Source, name: str = "", gpu: str = "", release: str = "") -> dict[str, Any]:
    """Make the JSON of a source's tables. InputError where its files or its GPU are not known.

    `release` is that of the wheel which the source came in, where that is known.
    """
    products = parquet(source, "gemm_perf", ("gemm_dtype", "m", "n", "k", "latency"))
    products = with_static_scales(products, source)
    device = str(products["device"].iloc[0]) if "device" in products else source.gpu
    card = find_gpu(gpu or gpu_name(device) or gpu_name(source.gpu) or device)
    document: dict[str, Any] = {
        "schema": SCHEMA,
        "version": VERSION,
        "name": name or f"{card.name}-{source.engine}-{source.version}",
        "gpu": card.name,
        "software": source.software,
        "sources": _sources(source, release),
        "rejected": {},
        "disturbed": {},
        "cold": {},
    }
    rows_of_products = product_rows(products, card, document, source.engine)
    document |= _products(products, rows_of_products)
    for kind, file, length in (
        ("decode", "generation_attention_perf", "step"),
        ("prompt", "context_attention_perf", "isl"),
    ):
        rows = attention_rows(source, file, length, card, document)
        document[kind] = [_heads(kind, some) for _, some in rows.groupby(["head_dim", "kv", "window"])]
    document["all_reduce"] = _all_reduce(source)
    document["errors"] = errors_of(load_tables(document), rows_of_products)
    return document


def write_tables(document: Mapping[str, Any], path: Path) -> None:
    """Write tables: JSON, gzipped without a time."""
    text = json.dumps(document, separators=(",", ":"))
    path.write_bytes(gzip.compress(text.encode(), compresslevel=9, mtime=0))


def _sources(source: Source, release: str) -> list[dict[str, str]]:
    """List where the files come from; by family, each version that was read with its families."""
    if not source.by_family:
        place = f"aic-core/src/aiconfigurator_core/systems/data/{source.gpu}/vllm_{source.version}"
        return [{**AICONFIGURATOR, "path": place}]
    families: dict[str, list[str]] = {}
    read = {**FAMILIES, **(SCALES if source.engine == "trtllm" else {})}
    for name, family in read.items():
        if source.has(name):
            found = families.setdefault(source.file(name).parent.name, [])
            found += [] if family in found else [family]
    core = {**AICONFIGURATOR_CORE, **({"version": release} if release else {})}
    return [
        {**core, "path": f"systems/data/{source.gpu}/{{{','.join(found)}}}/{source.engine}/{version}"}
        for version, found in families.items()
    ]


def _products(source: pd.DataFrame, rows: pd.DataFrame) -> dict[str, Any]:
    """The products by precision, and the precisions that are left out, with the reason."""
    found: dict[str, Any] = {}
    left: dict[str, str] = {}
    for dtype, name in PRECISIONS.items():
        if not (source["gemm_dtype"] == dtype).any():
            continue
        some = rows[(rows["precision"] == name) & (rows["n"] >= SMALLEST) & (rows["k"] >= SMALLEST)]
        least_us = _smallest_us(source, dtype)
        if not len(some):
            left[f"products {name}"] = f"the source has none as wide as {SMALLEST}"
        elif least_us > LAUNCHES_US:
            left[f"products {name}"] = f"the smallest take {least_us:.0f} us in the source: launches, not kernels"
        else:
            found[name] = _surface(some, name)
    return {"products": found, "left_out": left}


def _smallest_us(rows: pd.DataFrame, dtype: str) -> float:
    small = rows[(rows["gemm_dtype"] == dtype) & (rows["m"] <= 16) & (rows["n"] <= 2048) & (rows["k"] <= 2048)]
    return float(small["latency"].median() * 1e3) if len(small) else float("nan")


def _surface(rows: pd.DataFrame, name: str) -> dict[str, Any]:
    m, n, k, us = (rows[column].to_numpy(float) for column in ("m", "n", "k", "us"))
    width = WEIGHT_BYTES[name]
    physics = fit_physics(gemm_kernel(name).shape, product_features(m, n, k, width), us)
    kept = np.isin(m, M) & stands_for(name, m)
    axes = _axes({"m": m[kept], "n": n, "k": k})
    residual = np.log(us / np.asarray(physics.us(product_features(m, n, k, width))))
    table = on_grid([axis.values for axis in axes], [m, n, k], residual)
    return {"axes": [of_axis(axis) for axis in axes], "physics": of_physics(physics), "correction": coded(table)}


def _axes(columns: Mapping[str, Array]) -> list[SurfaceAxis]:
    """An axis of each column's values."""
    return [SurfaceAxis(name, tuple(np.unique(values).tolist())) for name, values in columns.items()]


def _heads(kind: str, rows: pd.DataFrame) -> dict[str, Any]:
    """The attention of heads of one width, KV precision and window."""
    head_dim, kv, window = (rows[name].iloc[0] for name in ("head_dim", "kv", "window"))
    batch, length, us = (rows[name].to_numpy(float) for name in ("batch", "length", "us"))
    heads, kv_heads = rows["heads"].to_numpy(float), rows["kv_heads"].to_numpy(float)
    if kind == "decode":
        physics = fit_physics(DECODE, decode_counts(batch, length, kv_heads, int(window)), us)
    else:
        physics = fit_physics(PROMPT, prompt_counts(batch, length, heads, int(window)), us)
    axes = _axes({"seqs": batch, "context": length} if kind == "decode" else {"chunks": batch, "each": length})
    cells, tables = [axis.values for axis in axes], {}
    for (ours, theirs), some in rows.groupby(["heads", "kv_heads"]):
        places = [some["batch"].to_numpy(float), some["length"].to_numpy(float)]
        tables[f"{ours}/{theirs}"] = coded(on_grid(cells, places, np.log(some["us"].to_numpy(float))))
    return {
        "head_dim": int(head_dim),
        "kv": str(kv),
        "window": int(window),
        "axes": [of_axis(axis) for axis in axes],
        "physics": of_physics(physics),
        "heads": tables,
    }


def _all_reduce(source: Source) -> dict[str, Any]:
    """All-reduces by GPUs, as in a CUDA graph where the source tells these apart."""
    rows = parquet(source, "custom_allreduce_perf", ("num_gpus", "message_size", "latency"))
    if "backend" in rows:
        rows = rows[rows["backend"] == f"{source.engine}_graph"]
    found = {}
    for ranks, some in rows.groupby("num_gpus"):
        us = some.groupby("message_size")["latency"].median() * 1e3
        found[str(ranks)] = {
            "bytes": [int(size) * BF16_BYTES for size in us.index],
            "us": [float(f"{value:.5g}") for value in us],
        }
    return found


def coded(table: Array) -> list[int | None]:
    """Code a table in thousandths, the last axis fastest; None for NaN."""
    return [None if np.isnan(value) else round(value / SCALE) for value in table.ravel().tolist()]
