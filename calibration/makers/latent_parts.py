"""SGLang's attention modules, put together from aiconfigurator's rows of their parts.

The source times no whole module of SGLang, but what it consists of (sglang/srt/models/deepseek_v2.py,
`DeepseekV2AttentionMLA`): attention (context_mla_perf, generation_mla_perf), and for decodes the two absorbed products
(mla_bmm_perf), in fp8 where the weights are fp8 by block. The projections are the products of the same engine's tables,
with keys and values of a prompt projected up for all heads. Norms, rope and the write to the cache are launches.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from calibration.makers.latent_rows import PRECISIONS
from calibration.sources.aiconfigurator import Source, parquet
from simulator.timing.tables.assumed import LAUNCH_US
from simulator.timing.tables.latent_counts import Dimensions, projections
from simulator.timing.tables.products import WEIGHT_BYTES, product_curve
from simulator.timing.tables.table_schema import Tables, read_tables

if TYPE_CHECKING:
    import pandas as pd

Array = NDArray[np.float64]

FILES = {"decode": "generation_mla_perf", "prompt": "context_mla_perf"}
ABSORBED = "mla_bmm_perf"
LAUNCHES = 3  # norms of both bottlenecks on two streams, rope, the write to the cache


def composed_rows(folder: Path, kind: str, tables: Path, of: Dimensions) -> pd.DataFrame:
    """Rows of decodes or prompts as `latent_rows.module_rows` has them, for each precision of the tables' products."""
    import pandas as pd

    names = ("mla_dtype", "kv_cache_dtype", "num_heads", "batch_size", "isl", "step", "latency", "kernel_source")
    rows = parquet(Source(folder, "", ""), FILES[kind], names)
    rows = rows[rows["mla_dtype"] == "bfloat16"]
    batch = rows["batch_size"].astype(float)
    length = (rows["isl"] + rows["step"]).astype(float)
    plain: pd.DataFrame = rows[[]].assign(
        kv=rows["kv_cache_dtype"].map(PRECISIONS),
        heads=rows["num_heads"],
        batch=batch,
        length=length,
        tokens=batch if kind == "decode" else batch * length,
        kernel=rows["kernel_source"],
        us=rows["latency"] * 1e3,
    )
    held = read_tables(tables)
    absorbed = _absorbed(folder) if kind == "decode" else None
    weights = [dtype for dtype in held.products if dtype != "fp8"]  # checkpoints have scales by block, or none
    found = [_with_rest(plain.assign(dtype=dtype), dtype, held, of, absorbed) for dtype in weights]
    return pd.concat(found, ignore_index=True)


def _with_rest(
    rows: pd.DataFrame, dtype: str, tables: Tables, of: Dimensions, absorbed: pd.DataFrame | None
) -> pd.DataFrame:
    """Rows of attention with all else that a module of these weights has."""
    rest = np.empty(len(rows))
    places = np.arange(len(rows))
    surface = tables.products[dtype]
    sizes = np.asarray(surface.axes[0].values)
    for heads, some in rows.assign(place=places).groupby("heads"):
        count = int(str(heads))
        tokens = some["tokens"].to_numpy(float)
        products = dict(projections(of, count))
        us = np.full(len(some), LAUNCHES * LAUNCH_US)
        if absorbed is None:  # keys and values of all heads, from the latent
            products["kv_b"] = (count * 2 * of["head_dim"], of["kv_lora_rank"])
        else:
            us += _at(absorbed[absorbed["fp8"] == (dtype == "fp8_block")], count, tokens)
        for n, k in products.values():
            curve = product_curve(surface, n, k, sizes, WEIGHT_BYTES[dtype])
            us += np.array([curve.at(each) for each in tokens])
        rest[some["place"].to_numpy()] = us
    return rows.assign(us=rows["us"] + rest)


def _absorbed(folder: Path) -> pd.DataFrame:
    """Both absorbed products over tokens, by heads and precision."""
    beside = folder.parents[2] / "mla_bmm" / folder.parent.name / folder.name
    rows = parquet(Source(beside, "", ""), ABSORBED, ("op_name", "bmm_dtype", "num_tokens", "num_heads", "latency"))
    rows = rows.assign(fp8=rows["bmm_dtype"] == "fp8", us=rows["latency"] * 1e3)
    each = rows.groupby(["fp8", "num_heads", "op_name", "num_tokens"])["us"].median()
    return each.groupby(["fp8", "num_heads", "num_tokens"]).sum().reset_index()


def _at(rows: pd.DataFrame, heads: int, tokens: Array) -> Array:
    """Microseconds of both for so many tokens, straight between those measured."""
    some = rows[rows["num_heads"] == heads]
    return np.asarray(np.interp(tokens, some["num_tokens"].to_numpy(float), some["us"].to_numpy(float)))
