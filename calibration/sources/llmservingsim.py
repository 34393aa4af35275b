"""LLMServingSim's profiles: CSV files of vLLM's kernels, one transformer layer, microseconds (profiler/perf there).

A folder `.../<model>/<variant>/` holds meta.yaml and a folder `tpN` for each parallelism. All tables hold the mean of
`measurement_iterations` runs, except skew.csv, whose times are their sum: its rows of equal contexts are 3.00 times
those of attention.csv at the same place, with 3 iterations.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from calibration.rows import Columns, KernelRows, Table, find_columns, gpu_name, make_table, model_name, read_columns
from simulator.errors import InputError

OPS = {
    "qkv_proj": "qkv", "o_proj": "output_projection", "gate_up_proj": "gate_up", "down_proj": "down",
    "layernorm": "norm", "qk_norm": "qk_norm", "rotary_emb": "rope", "act_fn": "activation",
    "embedding": "embedding", "final_layernorm": "final_norm",
}  # fmt: skip
TWICE = ("norm",)  # operators that run twice in a layer; their rows are of one run

TABLES: Mapping[str, tuple[str, Mapping[str, str]]] = {
    "dense": ("dense", {"op": "layer", "tokens": "tokens", "us": "time_us"}),
    "sampled": ("per_sequence", {"op": "layer", "seqs": "sequences", "us": "time_us"}),
    "attention": ("attention", {
        "chunk": "prefill_chunk", "cached": "kv_prefill", "seqs": "n_decode", "context": "kv_decode", "us": "time_us",
    }),
    "skew": ("skew", {
        "seqs": "n", "long_seqs": "nb", "short": "kvs", "long": "kv_big", "chunk": "pc", "cached": "kp",
        "equal_us": "t_mean_us", "us": "t_skew_us",
    }),
    "experts": ("moe", {"tokens": "tokens", "activated": "activated_experts", "us": "time_us"}),
}  # fmt: skip
"""The file of each kind of row, and the file's names of its columns."""
OPTIONAL = ("skew", "experts")


def read_llmservingsim(folder: Path, tensor_parallel: int = 1) -> KernelRows:
    """Read the rows of a `bf16` folder for one parallelism. InputError where files or columns are missing."""
    meta = _meta(folder / "meta.yaml")
    tables = folder / f"tp{tensor_parallel}"
    if not tables.is_dir():
        there = ", ".join(sorted(path.name for path in folder.glob("tp*")))
        raise InputError(f"no folder tp{tensor_parallel}", file=str(folder), hint=f"there are: {there or 'none'}")
    runs = int(meta.get("measurement_iterations", 3))
    found: dict[str, Table] = {}
    for kind, (file, names) in TABLES.items():
        columns = (find_columns if kind in OPTIONAL else read_columns)(tables, file, tuple(names.values()))
        if columns is not None and (len(columns[names["us"]]) or kind not in OPTIONAL):
            found[kind] = make_table(kind, _adapted(kind, {ours: columns[name] for ours, name in names.items()}, runs))
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


def _adapted(kind: str, columns: Columns, runs: int) -> Columns:
    """Return the columns with our names of operators, and with times of one layer and one run."""
    if kind == "dense":
        columns["op"] = np.array([OPS.get(str(layer), str(layer)) for layer in columns["op"]])
        columns["us"] = columns["us"] * np.where(np.isin(columns["op"], TWICE), 2.0, 1.0)
    elif kind == "skew":
        columns |= {name: columns[name] / runs for name in ("us", "equal_us")}
    return columns
