"""aiconfigurator's rows of whole attention modules (`calibration.makers.latent` says what a module is)."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from calibration.sources.aiconfigurator import Source, parquet

if TYPE_CHECKING:
    import pandas as pd

FILES = {"decode": "mla_generation_module_perf", "prompt": "mla_context_module_perf"}
LENGTHS = {"decode": "step", "prompt": "isl"}
MODEL = "deepseek-ai/DeepSeek-V3"
PRECISIONS = {"bfloat16": "bf16", "fp8": "fp8", "fp8_block": "fp8_block", "nvfp4": "nvfp4"}


SPARSE = {"decode": "dsa_generation_module_perf", "prompt": "dsa_context_module_perf"}
"""Files of modules with sparse attention, the indexer included; the rows that skip it are not taken."""


def module_rows(folder: Path, kind: str, *models: str) -> pd.DataFrame:
    """Rows of decodes or prompts: dtype, kv, heads, batch, length (tokens of each after the step), tokens, kernel, us.

    Those of prompts computed in fp8, or behind a cached prefix, are left out.
    """
    length, sparse = LENGTHS[kind], folder.parents[1].name == "sparse_attention"
    columns = ("model", "mla_dtype", "kv_cache_dtype", "gemm_type", "num_heads", "batch_size", length, "latency")
    rows = parquet(Source(folder, "", ""), (SPARSE if sparse else FILES)[kind], columns)
    kept = (rows["mla_dtype"] == "bfloat16") & rows["model"].isin(models or (MODEL,))
    if sparse:
        kept &= ~rows["op_name"].str.contains("skip") & ((kind == "decode") | (rows["step"] == 0))
    rows = rows[kept].reset_index(drop=True)
    batch, long = rows["batch_size"].astype(float), rows[length].astype(float)
    found: pd.DataFrame = rows[[]].assign(
        dtype=rows["gemm_type"].map(PRECISIONS),
        kv=rows["kv_cache_dtype"].map(PRECISIONS),
        heads=rows["num_heads"],
        batch=batch,
        length=long,
        tokens=batch if kind == "decode" else batch * long,
        kernel=rows["kernel_source"],
        us=rows["latency"] * 1e3,
    )
    return found
