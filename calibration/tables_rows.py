"""Read the rows that tables are made of: named, possible, undisturbed, and brought to a cold cache."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from calibration.cold import cold_decodes, cold_products
from calibration.limits import TOLERANCE
from calibration.sources.aiconfigurator import Source, parquet
from simulator.hardware.gpus import Gpu
from simulator.timing.profile.surface import Array
from simulator.timing.tables.products import WEIGHT_BYTES

if TYPE_CHECKING:
    import pandas as pd

Notes = dict[str, Any]  # counts by kind of row: how many, of how many

PRECISIONS = {"bfloat16": "bf16", "fp8": "fp8", "fp8_block": "fp8_block", "nvfp4": "nvfp4"}
KV_BYTES = {"bf16": 2, "fp8": 1}

PREFERRED = ("trtllm_mha", "fa3", "flashinfer", "triton")
"""Kernels of attention in the order in which SGLang takes them; others come first."""

DISTURBED = 1.3
"""A product that takes so many times as long as one of the same widths with more rows was disturbed: more rows are
never less work."""
KERNEL = 0.25
"""Unless so many of all widths are as slow with as many rows: then a kernel is, as vLLM's of one row in fp8."""


def product_rows(rows: pd.DataFrame, gpu: Gpu, notes: dict[str, Notes], engine: str = "vllm") -> pd.DataFrame:
    """Products with columns precision, m, n, k, us; what is left out or changed is counted in `notes`."""
    import pandas as pd

    found = []
    for dtype, name in PRECISIONS.items():
        some = rows[rows["gemm_dtype"] == dtype]
        if not len(some):
            continue
        frame = some[["m", "n", "k"]].astype(float).assign(precision=name, us=some["latency"] * 1e3)
        frame = _cold(frame, name, gpu, notes, engine)
        least = _least_product_us(frame, name, gpu)
        possible = (frame["us"] * TOLERANCE >= least).to_numpy()
        notes["rejected"][f"products {name}"] = [int((~possible).sum()), len(frame)]
        frame = frame[possible].sort_values(["n", "k", "m"])
        disturbed = _disturbed(frame)
        if disturbed.any():
            notes["disturbed"][f"products {name}"] = [int(disturbed.sum()), len(frame)]
        found.append(frame[~disturbed])
    return pd.concat(found, ignore_index=True)


def with_static_scales(rows: pd.DataFrame, source: Source) -> pd.DataFrame:
    """Take the search for the scale of the input out of TensorRT-LLM's products of fp8, which were timed with it.

    Checkpoints have static scales (ModelOpt's input_scale), so that a server quantises with a known one. What is taken
    out is the source's own time of that search (computescale_perf, over m and k); half of a product stays at least.
    """
    if source.engine != "trtllm" or not source.has("computescale_perf"):
        return rows
    scales = parquet(source, "computescale_perf", ("m", "k", "quant_dtype", "latency"))
    known = scales[scales["quant_dtype"] == "fp8"].pivot_table(index="m", columns="k", values="latency")
    fp8 = (rows["gemm_dtype"] == "fp8").to_numpy()
    m, k, ms = (rows.loc[fp8, name].to_numpy(float) for name in ("m", "k", "latency"))
    sizes, widths = known.index.to_numpy(float), known.columns.to_numpy(float)
    table = known.interpolate(axis=0, limit_direction="both").to_numpy(float)
    over_k = np.stack([np.interp(k, widths, line) for line in table])  # for each m of the table
    place = np.clip(np.searchsorted(sizes, m) - 1, 0, len(sizes) - 2)
    share = np.clip((m - sizes[place]) / (sizes[place + 1] - sizes[place]), 0.0, 1.0)
    each = np.arange(len(m))
    search = (1.0 - share) * over_k[place, each] + share * over_k[place + 1, each]
    found = rows.copy()
    found.loc[fp8, "latency"] = np.maximum(ms - search, 0.5 * ms)
    return found


def _cold(frame: pd.DataFrame, name: str, gpu: Gpu, notes: dict[str, Notes], engine: str) -> pd.DataFrame:
    us, weights = frame["us"].to_numpy(float), (WEIGHT_BYTES[name] * frame["n"] * frame["k"]).to_numpy(float)
    cold = cold_products(us, frame["m"].to_numpy(float), weights, name, gpu, engine)
    if cold.changed.any():
        notes["cold"][f"products {name}"] = [int(cold.changed.sum()), len(us)]
    return frame.assign(us=cold.us)


def _least_product_us(frame: pd.DataFrame, name: str, gpu: Gpu) -> Array:
    m, n, k = (frame[column].to_numpy(float) for column in ("m", "n", "k"))
    activations = np.maximum(2.0 * (m * k + m * n) - gpu.l2_mib * 2**20, 0.0)  # the rest may lie in the cache
    moved = WEIGHT_BYTES[name] * n * k + activations
    return np.asarray(np.maximum(2.0 * m * n * k / (gpu.tflops(name) * 1e6), moved / (gpu.bandwidth_gb_s * 1e3)))


def _disturbed(frame: pd.DataFrame) -> NDArray[np.bool_]:
    """The rows that were disturbed. On some machines of the source that is one in ten, some of them side by side."""
    falling = frame.sort_values("m", ascending=False)
    widths = [falling["n"], falling["k"]]
    with_more = falling.groupby(widths)["us"].cummin().groupby(widths).shift()  # the least time of those with more rows
    slow = (falling["us"] > DISTURBED * with_more).astype(float).where(with_more.notna())
    often = slow.groupby(falling["m"]).transform("mean")
    return np.asarray(((slow == 1.0) & (often < KERNEL)).reindex(frame.index))


def attention_rows(source: Source, file: str, length: str, gpu: Gpu, notes: dict[str, Notes]) -> pd.DataFrame:
    """Rows with columns heads, kv_heads, head_dim, kv, window, batch, length, us; without impossible ones."""
    import pandas as pd

    columns = ("batch_size", "num_heads", "num_key_value_heads", "head_dim", "kv_cache_dtype", length, "latency")
    rows = chosen_kernels(parquet(source, file, columns), source.engine, columns[:-1])
    frame = rows.assign(
        heads=rows["num_heads"],
        kv_heads=rows["num_key_value_heads"],
        kv=rows["kv_cache_dtype"].map(PRECISIONS),
        window=rows.get("window_size", 0),
        batch=rows["batch_size"].astype(float),
        length=rows[length].astype(float) + (1.0 if length == "step" else 0.0),
        us=rows["latency"] * 1e3,
    )
    if length == "step":
        parts = []
        for _, some in frame.groupby(["head_dim", "kv"]):
            cold = cold_decodes(some, _key_bytes(some), gpu)
            notes["cold"].setdefault(file, [0, len(frame)])[0] += int(cold.changed.sum())
            parts.append(some.assign(us=cold.us))
        frame = pd.concat(parts).sort_index()
    possible = frame["us"].to_numpy() * TOLERANCE >= _least_attention_us(frame, length, gpu)
    notes["rejected"][file] = [int((~possible).sum()), len(frame)]
    kept: pd.DataFrame = frame[possible]
    return kept


def chosen_kernels(rows: pd.DataFrame, engine: str, cell: Sequence[str]) -> pd.DataFrame:
    """One row for each cell: of several kernels that which the engine takes by itself, and fp8 queries to an fp8 cache.

    SGLang takes TensorRT-LLM's kernels on B200 to GB300 and FlashAttention 3 on Hopper, and falls back on FlashInfer
    and Triton (`--attention-backend`). It and TensorRT-LLM bring queries to fp8 for an fp8 cache.
    """
    if engine == "vllm":
        return rows
    kernels = rows["kernel_source"].map(lambda name: PREFERRED.index(name) if name in PREFERRED else 0)
    ordered = rows.assign(_kernel=kernels, _queries=rows["attn_dtype"] != rows["kv_cache_dtype"])
    ordered = ordered.sort_values(["_kernel", "_queries"], kind="stable")
    same = [*cell, *(["window_size"] if "window_size" in rows else [])]
    return ordered.drop_duplicates(same).drop(columns=["_kernel", "_queries"]).sort_index()


def _seen(frame: pd.DataFrame) -> Array:
    long, window = frame["length"].to_numpy(float), frame["window"].to_numpy(float)
    return np.where(window > 0, np.minimum(long, window), long)


def _key_bytes(frame: pd.DataFrame) -> Array:
    """Bytes of keys and values that decodes read."""
    each = 2.0 * frame["kv_heads"] * frame["head_dim"] * frame["kv"].map(KV_BYTES)
    return np.asarray(each * frame["batch"] * _seen(frame), dtype=np.float64)


def _least_attention_us(frame: pd.DataFrame, length: str, gpu: Gpu) -> Array:
    long, seen = frame["length"].to_numpy(float), _seen(frame)
    beyond = long - seen
    pairs = 0.5 * long * (long + 1) - 0.5 * beyond * (beyond + 1) if length == "isl" else seen
    flops = (4.0 * frame["heads"] * frame["head_dim"] * frame["batch"]).to_numpy(float) * pairs
    moved = _key_bytes(frame) if length == "step" else np.zeros(len(frame))
    peak = np.where(frame["kv"] == "fp8", gpu.tflops("fp8"), gpu.bf16_tflops) * 1e6
    return np.maximum(flops / peak, moved / (gpu.bandwidth_gb_s * 1e3))
