"""Tables of a GPU under one version of vLLM from aiconfigurator's parquet files: thinned, coded, tested.

Products keep all widths, and of the rows (m) about half (`M`): one just above each full tile, where the times jump.
Attention keeps all heads, batches and contexts, which are doublings already. Fractions below a thousandth go.
Rows that are faster than the GPU can be are left out, and so are precisions whose smallest products take `LAUNCHES_US`
and more: then launches were timed, one by one, and not the kernels that run in a CUDA graph.
"""

from __future__ import annotations

import gzip
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from calibration.document import of_axis, of_physics
from calibration.gemm import gemm_kernel, stands_for
from calibration.limits import TOLERANCE
from calibration.names import gpu_name
from calibration.physics_fit import Shape, fit_physics
from calibration.shipped import AICONFIGURATOR
from calibration.sources.aiconfigurator import BF16_BYTES, parquet
from calibration.tables_errors import errors_of
from simulator.errors import InputError
from simulator.hardware.gpus import Gpu, find_gpu
from simulator.timing.profile.surface import Axis
from simulator.timing.tables.attention import decode_counts, prompt_counts
from simulator.timing.tables.products import WEIGHT_BYTES, product_features
from simulator.timing.tables.schema import SCALE, SCHEMA, VERSION, load_tables

if TYPE_CHECKING:
    import pandas as pd

Array = NDArray[np.float64]

M = (
    1, 2, 4, 8, 16, 17, 32, 48, 64, 65, 80, 96, 112, 128, 129, 160, 192, 224, 256, 257, 384, 512, 513, 768, 769, 1024,
    1025, 1280, 1281, 1536, 1537, 2048, 2049, 2304, 2305, 2560, 2561, 3072, 3073, 3584, 3585, 4096, 4097, 8192, 16384,
)  # fmt: skip
"""Sizes of m that are kept where they were measured; of n and k, all are."""

SMALLEST = 256
"""Products narrower than this, in n or k, are not kept."""

LAUNCHES_US = 30.0
"""A kernel so small (up to 16 rows, 2,048 columns) takes 2 to 15 us in a graph."""

PRECISIONS = {"bfloat16": "bf16", "fp8": "fp8", "fp8_block": "fp8_block"}
KV_BYTES = {"bf16": 2, "fp8": 1}
DECODE = Shape(("items",), (("keys",), ("chain",)))
PROMPT = Shape(("tiles",), (("pairs", "tokens"), ("chain",)))

SHIPPED: Mapping[str, str] = {
    "h100-vllm-0.19": "h100_sxm/vllm_0.19.0",
    "h100-vllm-0.24": "h100_sxm/vllm_0.24.0",
    "h200-vllm-0.18": "h200_sxm/vllm_0.18.0",
    "h200-vllm-0.24": "h200_sxm/vllm_0.24.0",
    "a100-80gb-vllm-0.14": "a100_sxm/vllm_0.14.0",
}
"""The tables that come with batchlab, and their folders below `aiconfigurator_kernels/`."""


def tabulate(folder: Path, name: str = "", gpu: str = "") -> dict[str, Any]:
    """The JSON of a folder's tables. InputError where its files or its GPU are not known."""
    products = parquet(folder, "gemm_perf", ("gemm_dtype", "m", "n", "k", "latency"))
    device = str(products["device"].iloc[0]) if "device" in products else folder.parent.name
    card = find_gpu(gpu or gpu_name(device) or gpu_name(folder.parent.name) or device)
    software = folder.name.replace("_", " ").replace("vllm", "vLLM")
    document: dict[str, Any] = {
        "schema": SCHEMA,
        "version": VERSION,
        "name": name or f"{card.name}-{folder.name.replace('_', '-')}",
        "gpu": card.name,
        "software": software,
        "sources": [
            {**AICONFIGURATOR, "path": f"aic-core/src/aiconfigurator_core/systems/data/{_place(folder)}"},
        ],
        "rejected": {},
    }
    document |= _products(products, card, document["rejected"])
    for kind, file, length in (
        ("decode", "generation_attention_perf", "step"),
        ("prompt", "context_attention_perf", "isl"),
    ):
        rows = _attention_rows(folder, file, length, card, document["rejected"])
        document[kind] = [_heads(kind, some) for _, some in rows.groupby(["head_dim", "kv", "window"])]
    document["all_reduce"] = _all_reduce(folder)
    document["errors"] = errors_of(load_tables(document), products)
    return document


def write_tables(document: Mapping[str, Any], path: Path) -> None:
    """Write tables: JSON, gzipped without a time."""
    text = json.dumps(document, separators=(",", ":"))
    path.write_bytes(gzip.compress(text.encode(), compresslevel=9, mtime=0))


def _place(folder: Path) -> str:
    return f"{folder.parent.name}/{folder.name}"


def _products(rows: pd.DataFrame, gpu: Gpu, rejected: dict[str, Any]) -> dict[str, Any]:
    """The products by precision, and the precisions that are left out, with the reason."""
    found: dict[str, Any] = {}
    left: dict[str, str] = {}
    for dtype, name in PRECISIONS.items():
        some = rows[(rows["gemm_dtype"] == dtype) & (rows["n"] >= SMALLEST) & (rows["k"] >= SMALLEST)]
        if not len(some):
            continue
        least_us = _smallest_us(rows, dtype)
        if least_us > LAUNCHES_US:
            left[f"products {name}"] = f"the smallest take {least_us:.0f} us in the source: launches, not kernels"
            continue
        found[name] = _surface(some, name, gpu, rejected)
    return {"products": found, "left_out": left}


def _smallest_us(rows: pd.DataFrame, dtype: str) -> float:
    small = rows[(rows["gemm_dtype"] == dtype) & (rows["m"] <= 16) & (rows["n"] <= 2048) & (rows["k"] <= 2048)]
    return float(small["latency"].median() * 1e3) if len(small) else float("nan")


def _surface(rows: pd.DataFrame, name: str, gpu: Gpu, rejected: dict[str, Any]) -> dict[str, Any]:
    m, n, k = (rows[column].to_numpy(float) for column in ("m", "n", "k"))
    us = rows["latency"].to_numpy(float) * 1e3
    width = WEIGHT_BYTES[name]
    least = np.maximum(
        2.0 * m * n * k / (gpu.tflops(name) * 1e6), (width * n * k + 2.0 * (m * k + m * n)) / (gpu.bandwidth_gb_s * 1e3)
    )
    possible = us * TOLERANCE >= least
    rejected[f"products {name}"] = [int((~possible).sum()), len(us)]
    m, n, k, us = m[possible], n[possible], k[possible], us[possible]
    physics = fit_physics(gemm_kernel(name).shape, product_features(m, n, k, width), us)
    kept = np.isin(m, M) & stands_for(name, m)
    axes = [Axis(label, tuple(np.unique(sizes).tolist())) for label, sizes in (("m", m[kept]), ("n", n), ("k", k))]
    residual = np.log(us / np.asarray(physics.us(product_features(m, n, k, width))))
    table = on_grid(axes, [m, n, k], residual)
    return {"axes": [of_axis(axis) for axis in axes], "physics": of_physics(physics), "correction": coded(table)}


def _attention_rows(folder: Path, file: str, length: str, gpu: Gpu, rejected: dict[str, Any]) -> pd.DataFrame:
    """Rows with columns heads, kv_heads, head_dim, kv, window, batch, length, us; without impossible ones."""
    columns = ("batch_size", "num_heads", "num_key_value_heads", "head_dim", "kv_cache_dtype", length, "latency")
    rows = parquet(folder, file, columns)
    frame = rows.assign(
        heads=rows["num_heads"],
        kv_heads=rows["num_key_value_heads"],
        kv=rows["kv_cache_dtype"].map(PRECISIONS),
        window=rows.get("window_size", 0),
        batch=rows["batch_size"].astype(float),
        length=rows[length].astype(float) + (1.0 if length == "step" else 0.0),
        us=rows["latency"] * 1e3,
    )
    batch, long = frame["batch"].to_numpy(), frame["length"].to_numpy()
    window = frame["window"].to_numpy(float)
    seen = np.where(window > 0, np.minimum(long, window), long)
    key_bytes = 2.0 * frame["kv_heads"] * frame["head_dim"] * frame["kv"].map(KV_BYTES)
    beyond = long - seen
    pairs = 0.5 * long * (long + 1) - 0.5 * beyond * (beyond + 1) if length == "isl" else seen
    flops = 4.0 * frame["heads"] * frame["head_dim"] * batch * pairs
    moved = key_bytes * batch * (seen if length == "step" else 0.0)
    peak = np.where(frame["kv"] == "fp8", gpu.tflops("fp8"), gpu.bf16_tflops) * 1e6
    least = np.maximum(flops / peak, moved / (gpu.bandwidth_gb_s * 1e3))
    possible = frame["us"] * TOLERANCE >= least
    rejected[file] = [int((~possible).sum()), len(frame)]
    kept: pd.DataFrame = frame[possible]
    return kept


def _heads(kind: str, rows: pd.DataFrame) -> dict[str, Any]:
    """The attention of heads of one width, KV precision and window."""
    head_dim, kv, window = (rows[name].iloc[0] for name in ("head_dim", "kv", "window"))
    batch, length, us = (rows[name].to_numpy(float) for name in ("batch", "length", "us"))
    heads, kv_heads = rows["heads"].to_numpy(float), rows["kv_heads"].to_numpy(float)
    if kind == "decode":
        physics = fit_physics(DECODE, decode_counts(batch, length, kv_heads, int(window)), us)
    else:
        physics = fit_physics(PROMPT, prompt_counts(batch, length, heads, int(window)), us)
    names = ("seqs", "context") if kind == "decode" else ("chunks", "each")
    axes = [Axis(name, tuple(np.unique(values).tolist())) for name, values in zip(names, (batch, length), strict=True)]
    tables = {}
    for (ours, theirs), some in rows.groupby(["heads", "kv_heads"]):
        places = [some["batch"].to_numpy(float), some["length"].to_numpy(float)]
        tables[f"{ours}/{theirs}"] = coded(on_grid(axes, places, np.log(some["us"].to_numpy(float))))
    return {
        "head_dim": int(head_dim),
        "kv": str(kv),
        "window": int(window),
        "axes": [of_axis(axis) for axis in axes],
        "physics": of_physics(physics),
        "heads": tables,
    }


def _all_reduce(folder: Path) -> dict[str, Any]:
    rows = parquet(folder, "custom_allreduce_perf", ("num_gpus", "message_size", "backend", "latency"))
    rows = rows[rows["backend"] == "vllm_graph"]
    found = {}
    for ranks, some in rows.groupby("num_gpus"):
        us = some.groupby("message_size")["latency"].median() * 1e3
        found[str(ranks)] = {
            "bytes": [int(size) * BF16_BYTES for size in us.index],
            "us": [float(f"{value:.5g}") for value in us],
        }
    return found


def on_grid(axes: list[Axis], columns: list[Array], values: Array) -> Array:
    """The means of the values at the cells of the axes, NaN at those of none; rows between the cells are left out."""
    shape = tuple(len(axis.values) for axis in axes)
    inside = np.ones(len(values), dtype=bool)
    places = []
    for column, axis in zip(columns, axes, strict=True):
        known = np.asarray(axis.values)
        inside &= np.isin(column, known)
        places.append(np.clip(np.searchsorted(known, column), 0, len(known) - 1))
    flat = np.ravel_multi_index(tuple(place[inside] for place in places), shape)
    size = int(np.prod(shape))
    with np.errstate(invalid="ignore"):
        mean: Array = np.bincount(flat, values[inside], minlength=size) / np.bincount(flat, minlength=size)
    return mean.reshape(shape)


def coded(table: Array) -> list[int | None]:
    """Thousandths, the last axis fastest; None for NaN."""
    return [None if np.isnan(value) else round(value / SCALE) for value in table.ravel().tolist()]


def main() -> None:
    """`python -m calibration.tabulate ROOT [NAME...]`: make the shipped tables again from the sources below ROOT."""
    if len(sys.argv) < 2:
        raise InputError("no folder of sources", hint="python -m calibration.tabulate ROOT [NAME...]")
    root, names = Path(sys.argv[1]), sys.argv[2:]
    target = Path(__file__).parent / "tables"
    for name, folder in SHIPPED.items():
        if not names or name in names:
            path = target / f"{name}.json.gz"
            write_tables(tabulate(root / "aiconfigurator_kernels" / folder, name), path)
            print(f"{name}: {path.stat().st_size / 1e6:.2f} MB", flush=True)


if __name__ == "__main__":
    main()
