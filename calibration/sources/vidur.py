"""Vidur's profiles: CSV files with `time_stats.<op>.median` in milliseconds.

`mlp.csv` (compute/<gpu>/<model>/) has a layer's operators over num_tokens, `all_reduce.csv` (network/<node>/) sizes in
bytes, `attention.csv`, where there is one, prefills and decodes apart. Vidur's mlp_up_proj is gate and up together.
"""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from calibration.rows import Columns, KernelRows, Table, find_columns, gpu_name, make_table, model_name, select
from simulator.errors import InputError

OPS = {
    "attn_pre_proj": "qkv", "attn_post_proj": "output_projection", "mlp_up_proj": "gate_up", "mlp_down_proj": "down",
    "mlp_act": "activation", "attn_rope": "rope", "input_layernorm": "norm", "post_attention_layernorm": "norm_2",
}  # fmt: skip
FILES = ("mlp", "attention", "all_reduce")


def read_vidur(folder: Path, tensor_parallel: int = 1) -> KernelRows:
    """Read a folder with any of the three files. InputError where there is none, or none for the parallelism."""
    tables: dict[str, Table] = {}
    for kind, read in (("dense", _mlp), ("attention", _attention), ("all_reduce", _all_reduce)):
        table = read(folder, tensor_parallel)
        if table is not None:
            tables[kind] = table
    if not tables:
        names = ", ".join(f"{name}.csv" for name in FILES)
        raise InputError(f"none of {names}", file=str(folder), hint="name the folder of a model, or of a network")
    return KernelRows(
        gpu=next((name for part in reversed(folder.parts) if (name := gpu_name(part))), ""),
        model=model_name(folder.name),
        tensor_parallel=tensor_parallel,
        software="Vidur's profiler",
        tables=tables,
    )


def _mlp(folder: Path, ranks: int) -> Table | None:
    names = ("num_tokens", *(f"time_stats.{op}.median" for op in OPS))
    columns = _columns(folder, "mlp", names, "num_tensor_parallel_workers", ranks)
    if columns is None:
        return None
    ops, tokens, us = [], [], []
    for theirs, ours in OPS.items():
        times = columns[f"time_stats.{theirs}.median"] * 1e3
        known = times > 0
        ops.append(np.full(int(known.sum()), ours))
        tokens.append(columns["num_tokens"][known])
        us.append(times[known])
    return make_table("dense", {"op": np.concatenate(ops), "tokens": np.concatenate(tokens), "us": np.concatenate(us)})


def _attention(folder: Path, ranks: int) -> Table | None:
    names = (
        "is_prefill", "batch_size", "prefill_chunk_size", "kv_cache_size", "time_stats.attn_prefill.median",
        "time_stats.attn_decode.median",
    )  # fmt: skip
    columns = _columns(folder, "attention", names, "num_tensor_parallel_workers", ranks)
    if columns is None:
        return None
    prefill = np.isin(columns["is_prefill"].astype(str), ("True", "true", "1", "1.0"))
    us = 1e3 * np.where(prefill, columns["time_stats.attn_prefill.median"], columns["time_stats.attn_decode.median"])
    known = us > 0
    batch, cached = columns["batch_size"], columns["kv_cache_size"]
    table = {
        "chunk": np.where(prefill, columns["prefill_chunk_size"], 0.0),
        "cached": np.where(prefill, cached, 0.0),
        "chunks": np.where(prefill, batch, 1.0),
        "seqs": np.where(prefill, 0.0, batch),
        "context": np.where(prefill, 0.0, cached),
        "us": us,
    }
    return make_table("attention", {name: values[known] for name, values in table.items()})


def _all_reduce(folder: Path, ranks: int) -> Table | None:
    names = ("size", "collective", "time_stats.all_reduce.median")
    columns = _columns(folder, "all_reduce", names, "num_workers", ranks)
    if columns is None:
        return None
    some = select(columns, columns["collective"] == "all_reduce")
    times = some["time_stats.all_reduce.median"] * 1e3
    return make_table("all_reduce", {"gpus": some["num_workers"], "bytes": some["size"], "us": times})


def _columns(folder: Path, file: str, names: tuple[str, ...], of_ranks: str, ranks: int) -> Columns | None:
    """Read a file's columns for one parallelism, which its column `of_ranks` tells; None where there is no file."""
    columns = find_columns(folder, file, (of_ranks, *names))
    if columns is None:
        return None
    here: NDArray[np.bool_] = columns[of_ranks] == ranks
    if not here.any():
        there = ", ".join(f"{value:g}" for value in np.unique(columns[of_ranks]))
        raise InputError(f"no rows for tensor_parallel {ranks}", file=str(folder), hint=f"there are: {there}")
    return select(columns, here)
