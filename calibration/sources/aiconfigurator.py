"""aiconfigurator's kernel tables: parquet files of vLLM's kernels on one GPU, latencies in milliseconds.

A folder `<gpu>/vllm_<version>` holds gemm_perf, generation_attention_perf (context = step + 1), context_attention_perf
(fresh prompts) and custom_allreduce_perf (`message_size` in elements). Heads are those of one GPU; of attention, only
the rows of the asked model's heads are taken: bf16 cache, no window.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from calibration.names import gpu_name
from calibration.rows import KernelRows, Table, make_table
from simulator.errors import InputError
from simulator.hardware.models import Model

if TYPE_CHECKING:
    import pandas as pd

BF16 = "bfloat16"
BF16_BYTES = 2


def read_aiconfigurator(folder: Path, model: Model, tensor_parallel: int = 1) -> KernelRows:
    """The bf16 rows for a model's heads on one of `tensor_parallel` GPUs. InputError where files are missing."""
    gemm = parquet(folder, "gemm_perf", ("gemm_dtype", "m", "n", "k", "latency"))
    gemm = gemm[gemm["gemm_dtype"] == BF16]
    tables: dict[str, Table] = {
        "gemm": make_table(
            "gemm",
            {"m": gemm["m"], "n": gemm["n"], "k": gemm["k"], "us": gemm["latency"] * 1e3},
        ),
        "attention": _attention(folder, model, tensor_parallel),
    }
    if tensor_parallel > 1:
        tables["all_reduce"] = _all_reduce(folder, tensor_parallel)
    device = str(gemm["device"].iloc[0]) if "device" in gemm and len(gemm) else folder.parent.name
    return KernelRows(
        gpu=gpu_name(device) or gpu_name(folder.parent.name),
        model=model.name,
        tensor_parallel=tensor_parallel,
        software=folder.name.replace("_", " ").replace("vllm", "vLLM"),
        tables=tables,
    )


def parquet(folder: Path, name: str, columns: tuple[str, ...]) -> pd.DataFrame:
    """A parquet file of the folder with these columns. InputError where it is missing, or cannot be read."""
    path = folder / f"{name}.parquet"
    if not path.exists():
        raise InputError(f"no {name}.parquet", file=str(folder))
    try:
        import pandas
        import pyarrow  # noqa: F401 - what pandas reads parquet with
    except ImportError:
        raise InputError(
            "reading parquet needs pyarrow, which is not installed", file=str(path),
            hint="pip install 'batchlab[parquet]'",
        ) from None  # fmt: skip
    frame = pandas.read_parquet(path)
    for column in columns:
        if column not in frame:
            raise InputError(f"no column {column}", file=str(path), hint=f"columns: {', '.join(map(str, frame))}")
    return frame


def _attention(folder: Path, model: Model, tensor_parallel: int) -> Table:
    heads, kv_heads = model.heads // tensor_parallel, model.local_kv_heads(tensor_parallel)
    names = ("batch_size", "num_heads", "num_key_value_heads", "head_dim", "kv_cache_dtype", "latency")
    columns: dict[str, list[np.ndarray]] = {name: [] for name in ("chunk", "chunks", "seqs", "context", "us")}
    for file, count in (("generation_attention_perf", "step"), ("context_attention_perf", "isl")):
        frame = parquet(folder, file, (*names, count))
        chosen = (
            (frame["num_heads"] == heads)
            & (frame["num_key_value_heads"] == kv_heads)
            & (frame["head_dim"] == model.head_dim)
            & (frame["kv_cache_dtype"] == BF16)
        )
        if "window_size" in frame:
            chosen &= frame["window_size"] == 0
        if not chosen.any():
            has = sorted(set(zip(frame["num_heads"].tolist(), frame["num_key_value_heads"].tolist(), strict=True)))
            what = f"no rows of {heads} query and {kv_heads} KV heads of {model.head_dim}"
            raise InputError(what, file=str(folder / f"{file}.parquet"), hint=f"heads here: {has}" if has else None)
        frame = frame[chosen]
        batch, length = frame["batch_size"].to_numpy(float), frame[count].to_numpy(float)
        decodes = count == "step"
        nothing = np.zeros(len(frame))
        columns["chunk"].append(nothing if decodes else length)
        columns["chunks"].append(nothing + 1.0 if decodes else batch)
        columns["seqs"].append(batch if decodes else nothing)
        columns["context"].append(length + 1.0 if decodes else nothing)
        columns["us"].append(frame["latency"].to_numpy(float) * 1e3)
    whole = {name: np.concatenate(parts) for name, parts in columns.items()}
    return make_table("attention", {**whole, "cached": np.zeros(len(whole["us"]))})


def _all_reduce(folder: Path, tensor_parallel: int) -> Table:
    frame = parquet(folder, "custom_allreduce_perf", ("num_gpus", "message_size", "backend", "latency"))
    frame = frame[(frame["num_gpus"] == tensor_parallel) & (frame["backend"] == "vllm_graph")]
    columns = {
        "gpus": frame["num_gpus"],
        "bytes": frame["message_size"] * BF16_BYTES,
        "us": frame["latency"] * 1e3,
    }
    return make_table("all_reduce", columns)
