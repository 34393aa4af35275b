"""Make a GPU's tables under one version of an engine from aiconfigurator's parquet files: thinned, coded, tested.

Products keep all widths, and of the rows (m) about half (`M`): one just above each full tile, where the times jump.
Attention keeps all heads, batches and contexts, which are doublings already. Fractions below a thousandth go.
Rows are brought to a cold cache, and those that are faster than the GPU can be, or were disturbed, are left out
(`product_rows`). So are precisions whose smallest products take `LAUNCHES_US` and more: then launches were
timed, one by one, and not the kernels that run in a CUDA graph (`use_cuda_graph=gemm_type != "fp8_block"` in
aiconfigurator's collector/vllm/collect_gemm.py).
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from calibration.cold import cold_decodes, cold_products
from calibration.fit import of_axis, of_physics
from calibration.heldout import FOLDS, SEED, Errors, summary
from calibration.rows import TOLERANCE, gpu_name
from calibration.sources import AICONFIGURATOR, AICONFIGURATOR_CORE, BF16_BYTES, FAMILIES, SCALES, Source, parquet
from calibration.surface_fit import Shape, fit_physics, gemm_kernel, on_grid, stands_for
from simulator.hardware.gpus import Gpu, find_gpu
from simulator.timing.profile.surface import Array, Surface, SurfaceAxis
from simulator.timing.tables.attention import Found, decode_counts, decode_us, prompt_counts, prompt_us
from simulator.timing.tables.products import WEIGHT_BYTES, product_curve, product_features, without_widths
from simulator.timing.tables.table_schema import SCALE, SCHEMA, VERSION, Heads, HeadTable, Tables, load_tables

if TYPE_CHECKING:
    import pandas as pd


# Read the rows that tables are made of: named, possible, undisturbed, and brought to a cold cache.

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


# Errors of tables on rows that they do not hold, or that are left out for the test.
#
# Regimes: `thinned` (products between the rows that were kept), `sizes` (every other width of a product, from those
# beside it), `random` (a tenth of the cells of attention, each from its neighbours, so from twice as far as any
# step is), `heads` (all of one pair of query and KV heads, from the others), `kv_heads` (all with the most KV
# heads, from those with fewer).

Predict = Callable[[HeadTable, Heads], Found]


def errors_of(tables: Tables, products: pd.DataFrame) -> Errors:
    """Errors by kind and regime, in percent (`calibration.heldout.summary`)."""
    found: Errors = {}
    for dtype in tables.products:
        regimes = {"thinned": _thinned(tables, dtype, products), "sizes": _sizes(tables.products[dtype], dtype)}
        found[f"gemm_{dtype}"] = {name: summary(errors) for name, errors in regimes.items() if len(errors)}
    kinds: tuple[tuple[str, tuple[HeadTable, ...], Predict], ...] = (
        ("decode_attention", tables.decode, decode_us),
        ("prefill_attention", tables.prompt, prompt_us),
    )
    for kind, parts, predict in kinds:
        parted = {
            "random": [each for table in parts for each in _cells(table, predict)],
            "heads": [each for table in parts for each in _one_left_out(table, predict)],
            "kv_heads": [each for table in parts for each in _most_left_out(table, predict)],
        }
        found[kind] = {name: summary(np.concatenate(errors)) for name, errors in parted.items() if errors}
    return found


def _thinned(tables: Tables, dtype: str, rows: pd.DataFrame) -> Array:
    """Relative errors of products within the grid that are not among its cells."""
    surface = tables.products[dtype]
    m_axis, n_axis, k_axis = surface.axes
    rows = rows[(rows["precision"] == dtype) & stands_for(dtype, rows["m"].to_numpy(float))]
    for name, axis in (("m", m_axis), ("n", n_axis), ("k", k_axis)):
        rows = rows[(rows[name] >= axis.values[0]) & (rows[name] <= axis.values[-1])]
    errors = []
    for _, some in rows.groupby(["n", "k"]):
        n, k = float(some["n"].iloc[0]), float(some["k"].iloc[0])
        m, us = some["m"].to_numpy(float), some["us"].to_numpy(float)
        left = ~np.isin(m, m_axis.values) if n in n_axis.values and k in k_axis.values else np.ones(len(m), dtype=bool)
        curve = product_curve(surface, n, k, np.asarray(m_axis.values), WEIGHT_BYTES[dtype])
        errors.append(np.array([curve.at(size) for size in m[left]]) / us[left] - 1.0)
    return np.concatenate(errors) if errors else np.empty(0)


def _sizes(surface: Surface, dtype: str) -> Array:
    """Relative errors at every other n and k, from a grid of the others: from twice as far as any product is."""
    m, n, k = [np.asarray(axis.values) for axis in surface.axes]
    thin = without_widths(surface, n[1::2], k[1::2])
    places = np.meshgrid(m, n, k, indexing="ij")
    left = ~(np.isin(places[1], thin.axes[1].values) & np.isin(places[2], thin.axes[2].values))
    at = [place[left] for place in places]
    features = product_features(at[0], at[1], at[2], WEIGHT_BYTES[dtype])
    return np.asarray(thin.us_many(at, features) / surface.us_many(at, features) - 1.0)


def _cells(table: HeadTable, predict: Predict) -> Iterator[Array]:
    """Errors of single cells, a tenth of them at a time."""
    generator = np.random.default_rng(SEED)
    for heads, values in table.log_us.items():
        known = np.flatnonzero(~np.isnan(values))
        if len(known) < FOLDS:
            continue
        left = generator.permutation(known)[: len(known) // FOLDS]
        holes = values.copy()
        holes.ravel()[left] = np.nan
        found = predict(replace(table, log_us={**table.log_us, heads: holes}), heads).log_us
        yield np.exp(found.ravel()[left] - values.ravel()[left]) - 1.0


def _one_left_out(table: HeadTable, predict: Predict) -> Iterator[Array]:
    """Errors of each pair of heads that lies between others."""
    for heads, values in table.log_us.items():
        beside = [query for query, kv_heads in table.log_us if kv_heads == heads[1]]
        if min(beside) < heads[0] < max(beside):
            rest = {each: known for each, known in table.log_us.items() if each != heads}
            yield _errors(predict(replace(table, log_us=rest), heads).log_us, values)


def _most_left_out(table: HeadTable, predict: Predict) -> Iterator[Array]:
    """Errors of the pairs with the most KV heads."""
    most = max(kv_heads for _, kv_heads in table.log_us)
    rest = {heads: known for heads, known in table.log_us.items() if heads[1] < most}
    if rest:
        for heads, values in table.log_us.items():
            if heads[1] == most:
                yield _errors(predict(replace(table, log_us=rest), heads).log_us, values)


def _errors(found: Array, values: Array) -> Array:
    known = ~np.isnan(values)
    return np.asarray(np.exp(found[known] - values[known]) - 1.0)


# The tables of a GPU.

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
