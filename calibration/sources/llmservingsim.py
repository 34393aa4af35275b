"""LLMServingSim's profiles: CSV files of vLLM's kernels, one transformer layer, microseconds (profiler/perf there).

A folder `.../<model>/<variant>/` holds meta.yaml and a folder `tpN` for each parallelism. All tables hold the mean of
`measurement_iterations` runs, except skew.csv, whose times are their sum: its rows of equal contexts are 3.00 times
those of attention.csv at the same place, with 3 iterations.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from calibration.csv_tables import read_columns
from calibration.names import gpu_name, model_name
from calibration.rows import KernelRows, Table, make_table
from simulator.errors import InputError

OPS = {
    "qkv_proj": "qkv", "o_proj": "output_projection", "gate_up_proj": "gate_up", "down_proj": "down",
    "layernorm": "norm", "qk_norm": "qk_norm", "rotary_emb": "rope", "act_fn": "activation",
    "embedding": "embedding", "final_layernorm": "final_norm",
}  # fmt: skip
TWICE = ("norm",)
"""Operators that run twice in a layer; their rows are of one run."""


def read_llmservingsim(folder: Path, tensor_parallel: int = 1) -> KernelRows:
    """The rows of a `bf16` folder for one parallelism. InputError where files or columns are missing."""
    meta = _meta(folder / "meta.yaml")
    tables = folder / f"tp{tensor_parallel}"
    if not tables.is_dir():
        there = ", ".join(sorted(path.name for path in folder.glob("tp*")))
        raise InputError(f"no folder tp{tensor_parallel}", file=str(folder), hint=f"there are: {there or 'none'}")
    iterations = int(meta.get("measurement_iterations", 3))
    found: dict[str, Table] = {"dense": _dense(tables), "sampled": _sampled(tables), "attention": _attention(tables)}
    skew = _skew(tables, iterations)
    if skew is not None:
        found["skew"] = skew
    experts = _experts(tables)
    if experts is not None:
        found["experts"] = experts
    return KernelRows(
        gpu=gpu_name(str(meta.get("gpu", ""))),
        model=model_name(str(meta.get("model", ""))),
        tensor_parallel=tensor_parallel,
        dtype=str(meta.get("variant", "bf16")),
        software=f"vLLM {meta.get('vllm_version', '?')}, CUDA {meta.get('cuda_version', '?')}",
        tables=found,
    )


def _meta(path: Path) -> dict[str, Any]:
    import yaml

    try:
        meta = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, yaml.YAMLError) as error:
        raise InputError(f"cannot read the profile's description: {error}", file=str(path)) from None
    if not isinstance(meta, dict):
        raise InputError("not a profile's description", file=str(path))
    return meta


def _dense(folder: Path) -> Table:
    columns = read_columns(folder, "dense", ("layer", "tokens", "time_us"))
    ops = np.array([OPS.get(str(layer), str(layer)) for layer in columns["layer"]])
    twice = np.where(np.isin(ops, TWICE), 2.0, 1.0)
    return make_table("dense", {"op": ops, "tokens": columns["tokens"], "us": columns["time_us"] * twice})


def _sampled(folder: Path) -> Table:
    columns = read_columns(folder, "per_sequence", ("layer", "sequences", "time_us"))
    return make_table("sampled", {"op": columns["layer"], "seqs": columns["sequences"], "us": columns["time_us"]})


def _attention(folder: Path) -> Table:
    columns = read_columns(folder, "attention", ("prefill_chunk", "kv_prefill", "n_decode", "kv_decode", "time_us"))
    return make_table(
        "attention",
        {
            "chunk": columns["prefill_chunk"],
            "cached": columns["kv_prefill"],
            "seqs": columns["n_decode"],
            "context": columns["kv_decode"],
            "us": columns["time_us"],
        },
    )


def _skew(folder: Path, iterations: int) -> Table | None:
    names = ("n", "nb", "pc", "kp", "kvs", "kv_big", "t_mean_us", "t_skew_us")
    columns = read_columns(folder, "skew", names, optional=True)
    if columns is None or not len(columns["n"]):
        return None
    return make_table(
        "skew",
        {
            "seqs": columns["n"],
            "long_seqs": columns["nb"],
            "short": columns["kvs"],
            "long": columns["kv_big"],
            "chunk": columns["pc"],
            "cached": columns["kp"],
            "equal_us": columns["t_mean_us"] / iterations,
            "us": columns["t_skew_us"] / iterations,
        },
    )


def _experts(folder: Path) -> Table | None:
    columns = read_columns(folder, "moe", ("tokens", "activated_experts", "time_us"), optional=True)
    if columns is None:
        return None
    names = {"tokens": "tokens", "activated": "activated_experts", "us": "time_us"}
    return make_table("experts", {name: columns[theirs] for name, theirs in names.items()})
