"""Kernel measurements that others have published, read into rows: each format, and which of them a folder holds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from calibration.cold import cold_decodes, cold_products
from calibration.engines import READERS
from calibration.rows import (
    Columns,
    KernelRows,
    Table,
    find_columns,
    gpu_name,
    make_table,
    merge,
    model_name,
    model_of,
    read_columns,
    read_csv,
    read_rows,
    read_text,
    select,
)
from simulator.errors import InputError
from simulator.hardware.gpus import GPUS, Gpu
from simulator.hardware.models import Model
from simulator.parameters import check_choice
from simulator.timing.profile.surface import Array

if TYPE_CHECKING:
    import pandas as pd


# aiconfigurator's kernel tables: parquet files of an engine's kernels on one GPU, latencies in milliseconds.
#
# gemm_perf, generation_attention_perf (context = step + 1), context_attention_perf (fresh prompts),
# custom_allreduce_perf (`message_size` in elements). They lie in one of two layouts (`find_source`): all files in a
# folder `<gpu>/vllm_<version>`, or, as the wheel aiconfigurator-core has them below `systems/data`, by family in
# `<gpu>/<family>/<engine>/<version>`, the engine being vllm, sglang or trtllm.
#
# Of vLLM each cell has one row, of the kernel that vLLM itself chose for it (`kernel_source`): the rows are of
# vLLM's layers (collector/vllm/collect_gemm.py, collect_attn.py), and its own rules pick the kernel (attention:
# `_get_backend_priorities` in vllm/platforms/cuda.py, FlashInfer first on B200 to GB300, else FlashAttention; with
# an fp8 cache, of which FlashAttention 2 has no kernels, FlashInfer, and Triton for heads that neither has). Heads
# are those of one GPU; of attention, only the rows of the asked model's heads are taken: bf16 cache, no window.

AICONFIGURATOR = {
    "source": "ai-dynamo/aiconfigurator",
    "commit": "095f58a51c4ca8e61b66ec108d86f223f8d559ce",
    "licence": "Apache-2.0",
}
AICONFIGURATOR_CORE = {"source": "aiconfigurator-core", "licence": "Apache-2.0"}
"""The wheel on PyPI that has these tables, and tables of more GPUs."""

BF16 = "bfloat16"
BF16_BYTES = 2

FAMILIES = {
    "gemm_perf": "gemm",
    "generation_attention_perf": "attention",
    "context_attention_perf": "attention",
    "custom_allreduce_perf": "comm",
}
"""The folder of each file, where files lie by family."""
SCALES = {"computescale_perf": "quantize"}
"""The folder of the file of the search for a scale, which TensorRT-LLM's products of fp8 were timed with."""

AICONFIGURATOR_ENGINES = {"vllm": "vLLM", "sglang": "SGLang", "trtllm": "TensorRT-LLM"}
"""The source's word for an engine, and its name."""


@dataclass(frozen=True, slots=True)
class Source:
    """Tables of one GPU under one version of an engine: `folder` holds the files, or, `by_family`, their families."""

    folder: Path
    gpu: str
    version: str
    by_family: bool = False
    engine: str = "vllm"  # one of `ENGINES`

    @property
    def software(self) -> str:
        return f"{AICONFIGURATOR_ENGINES[self.engine]} {self.version}"

    def file(self, name: str) -> Path:
        """A file's path. By family, the file of the newest version up to this one: not all were measured each time.

        InputError where there is none.
        """
        if not self.by_family:
            if not (path := self.folder / f"{name}.parquet").exists():
                raise InputError(f"no {name}.parquet", file=str(self.folder))
            return path
        place = self.folder / {**FAMILIES, **SCALES}[name] / self.engine
        found = [path for path in place.glob(f"*/{name}.parquet") if _number(path.parent.name) <= _number(self.version)]
        if not found:
            raise InputError(f"no {name}.parquet of {self.software} or before", file=str(place))
        return max(found, key=lambda path: _number(path.parent.name))

    def has(self, name: str) -> bool:
        """Tell whether there is such a file."""
        try:
            return self.file(name).exists()
        except InputError:
            return False


def find_source(folder: Path, version: str = "", engine: str = "vllm") -> Source:
    """Find the tables in a folder: `<gpu>/vllm_<version>` of files, or `<gpu>` of families, the newest with products.

    `engine` is one of `ENGINES`.

    InputError where it is neither.
    """
    if any(folder.glob("*_perf.parquet")):
        return Source(folder, folder.parent.name, folder.name.rpartition("_")[2])
    there = sorted((path.parent.name for path in folder.glob(f"gemm/{engine}/*/gemm_perf.parquet")), key=_number)
    if not there or (version and version not in there):
        what = f"no tables of {AICONFIGURATOR_ENGINES[engine]} {version}".rstrip() + (
            f"; there are {', '.join(there)}" if there else ""
        )
        hint = (
            f"a folder of aiconfigurator's *_perf.parquet, or GPU with gemm/{engine}/VERSION/gemm_perf.parquet below it"
        )
        raise InputError(what, file=str(folder), hint=hint)
    return Source(folder, folder.name, version or there[-1], by_family=True, engine=engine)


def read_aiconfigurator(folder: Path, model: Model, tensor_parallel: int = 1) -> KernelRows:
    """Read the bf16 rows for a model's heads on one of `tensor_parallel` GPUs, with a cold cache (`calibration.cold`).

    InputError where files are missing.
    """
    source = find_source(folder)
    gemm = parquet(source, "gemm_perf", ("gemm_dtype", "m", "n", "k", "latency"))
    gemm = gemm[gemm["gemm_dtype"] == BF16]
    device = str(gemm["device"].iloc[0]) if "device" in gemm and len(gemm) else source.gpu
    name = gpu_name(device) or gpu_name(source.gpu)
    gpu = GPUS.get(name)
    us = (gemm["latency"] * 1e3).to_numpy(float)
    if gpu is not None:
        rows, weights = gemm["m"].to_numpy(float), (BF16_BYTES * gemm["n"] * gemm["k"]).to_numpy(float)
        us = cold_products(us, rows, weights, "bf16", gpu).us
    tables: dict[str, Table] = {
        "gemm": make_table("gemm", {"m": gemm["m"], "n": gemm["n"], "k": gemm["k"], "us": us}),
        "attention": _attention(source, model, tensor_parallel, gpu),
    }
    if tensor_parallel > 1:
        tables["all_reduce"] = _all_reduce(source, tensor_parallel)
    return KernelRows(
        gpu=name, model=model.name, tensor_parallel=tensor_parallel, software=source.software, tables=tables
    )


def parquet(source: Source, name: str, columns: tuple[str, ...]) -> pd.DataFrame:
    """Read a parquet file. InputError where it is missing, cannot be read or lacks one of these columns."""
    path = source.file(name)
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


def _number(version: str) -> tuple[int, ...]:
    """A version's numbers; a candidate ("1.3.0rc20") comes before the release of its number."""
    numbers = [int(part) if part.isdigit() else -1 for part in version.replace("rc", ".-.").split(".")]
    return tuple(numbers)


def _attention(source: Source, model: Model, tensor_parallel: int, gpu: Gpu | None) -> Table:
    heads, kv_heads = model.heads // tensor_parallel, model.local_kv_heads(tensor_parallel)
    names = ("batch_size", "num_heads", "num_key_value_heads", "head_dim", "kv_cache_dtype", "latency")
    parts: list[dict[str, Array]] = []
    for file, count in (("generation_attention_perf", "step"), ("context_attention_perf", "isl")):
        frame = parquet(source, file, (*names, count))
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
            raise InputError(what, file=str(source.file(file)), hint=f"heads here: {has}" if has else None)
        frame = frame[chosen]
        batch, length = frame["batch_size"].to_numpy(float), frame[count].to_numpy(float)
        us, nothing = frame["latency"].to_numpy(float) * 1e3, np.zeros(len(frame))
        if count == "isl":
            parts.append({"chunk": length, "chunks": batch, "seqs": nothing, "context": nothing, "us": us})
            continue
        if gpu is not None:
            key_bytes = 2.0 * kv_heads * model.head_dim * BF16_BYTES * batch * (length + 1.0)
            same = frame.assign(heads=heads, kv_heads=kv_heads, window=0, batch=batch, length=length, us=us)
            us = cold_decodes(same, key_bytes, gpu).us
        parts.append({"chunk": nothing, "chunks": nothing + 1.0, "seqs": batch, "context": length + 1.0, "us": us})
    whole = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    return make_table("attention", {**whole, "cached": np.zeros(len(whole["us"]))})


def _all_reduce(source: Source, tensor_parallel: int) -> Table:
    frame = parquet(source, "custom_allreduce_perf", ("num_gpus", "message_size", "backend", "latency"))
    frame = frame[(frame["num_gpus"] == tensor_parallel) & (frame["backend"] == "vllm_graph")]
    columns = {"gpus": frame["num_gpus"], "bytes": frame["message_size"] * BF16_BYTES, "us": frame["latency"] * 1e3}
    return make_table("all_reduce", columns)


# LLMServingSim's profiles: CSV files of vLLM's kernels, one transformer layer, microseconds (profiler/perf there).
#
# A folder `.../<model>/<variant>/` holds meta.yaml and a folder `tpN` for each parallelism. All tables hold the
# mean of `measurement_iterations` runs, except skew.csv, whose times are their sum: its rows of equal contexts are
# 3.00 times those of attention.csv at the same place, with 3 iterations.

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


# Splitwise's perf_model.csv: static batches on whole servers, milliseconds: steps, not kernels.
#
# A row is a batch that is prefilled at once (prompt_time) and decodes token_size tokens (token_time each, on
# average): so it is two rows of steps, the decode with the mean context of its run.

COLUMNS = (
    "model", "hardware", "prompt_size", "batch_size", "token_size", "prompt_time", "token_time", "tensor_parallel",
)  # fmt: skip


def read_splitwise(path: Path, model: str = "", gpu: str = "", tensor_parallel: int = 1) -> KernelRows:
    """Read the steps of one model, GPU and parallelism, by batchlab's names. InputError where there are none."""
    columns = read_csv(path, COLUMNS)
    models = np.array([model_name(str(name)) for name in columns["model"]])
    gpus = np.array([gpu_name(str(name)) if "cap" not in str(name) else "" for name in columns["hardware"]])
    here = (columns["tensor_parallel"] == tensor_parallel) & (models == model) & (gpus == gpu)
    if not here.any():
        all_of_them = zip(models, gpus, columns["tensor_parallel"], strict=True)
        known = sorted({f"{m} on {g} with tensor_parallel {t:g}" for m, g, t in all_of_them if m and g})
        what = f"no rows of {model or '(no --model)'} on {gpu or '(no --gpu)'} with tensor_parallel {tensor_parallel}"
        raise InputError(what, file=str(path), hint=f"there are: {'; '.join(known)}")
    batch, prompt, tokens = (columns[name][here] for name in ("batch_size", "prompt_size", "token_size"))
    nothing = np.zeros(len(batch))
    context = prompt + (tokens + 1.0) / 2.0
    steps = {
        "decode_seqs": (nothing, batch),
        "decode_context": (nothing, batch * context),
        "prefill_seqs": (batch, nothing),
        "prefill_tokens": (batch * prompt, nothing),
        "prefill_context": (batch * prompt, nothing),
        "prefill_pairs": (batch * prompt * (prompt + 1.0) / 2.0, nothing),
        "decode_longest": (nothing, context),
        "decode_squares": (nothing, batch * context**2),
        "prefill_longest": (prompt, nothing),
        "us": (columns["prompt_time"][here] * 1e3, columns["token_time"][here] * 1e3),
    }
    table = make_table("step", {name: np.concatenate(parts) for name, parts in steps.items()})
    return KernelRows(
        gpu=gpu, model=model, tensor_parallel=tensor_parallel, software="not stated", tables={"step": table}
    )


# Vidur's profiles: CSV files with `time_stats.<op>.median` in milliseconds.
#
# `mlp.csv` (compute/<gpu>/<model>/) has a layer's operators over num_tokens, `all_reduce.csv` (network/<node>/)
# sizes in bytes, `attention.csv`, where there is one, prefills and decodes apart. Vidur's mlp_up_proj is gate and
# up together.

VIDUR_OPS = {
    "attn_pre_proj": "qkv", "attn_post_proj": "output_projection", "mlp_up_proj": "gate_up", "mlp_down_proj": "down",
    "mlp_act": "activation", "attn_rope": "rope", "input_layernorm": "norm", "post_attention_layernorm": "norm_2",
}  # fmt: skip
FILES = ("mlp", "attention", "all_reduce")


def read_vidur(folder: Path, tensor_parallel: int = 1) -> KernelRows:
    """Read a folder with any of the three files. InputError where there is none, or none for the parallelism."""
    tables: dict[str, Table] = {}
    for kind, read in (("dense", _mlp), ("attention", _vidur_attention), ("all_reduce", _vidur_all_reduce)):
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
    names = ("num_tokens", *(f"time_stats.{op}.median" for op in VIDUR_OPS))
    columns = _columns(folder, "mlp", names, "num_tensor_parallel_workers", ranks)
    if columns is None:
        return None
    ops, tokens, us = [], [], []
    for theirs, ours in VIDUR_OPS.items():
        times = columns[f"time_stats.{theirs}.median"] * 1e3
        known = times > 0
        ops.append(np.full(int(known.sum()), ours))
        tokens.append(columns["num_tokens"][known])
        us.append(times[known])
    return make_table("dense", {"op": np.concatenate(ops), "tokens": np.concatenate(tokens), "us": np.concatenate(us)})


def _vidur_attention(folder: Path, ranks: int) -> Table | None:
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


def _vidur_all_reduce(folder: Path, ranks: int) -> Table | None:
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


# Detect the format of a source, and read its rows.

ENGINES = {reader.name: reader for reader in READERS}
FORMATS = ("auto", "rows", "llmservingsim", "aiconfigurator", "vidur", "splitwise", *ENGINES)


def detect(path: Path) -> str:
    """Detect the format of a path; InputError where it is of none."""
    if not path.exists():
        raise InputError("no such file or folder", file=str(path))
    if path.is_dir():
        if (path / "meta.yaml").exists():
            return "llmservingsim"
        if any(path.glob("*_perf.parquet")):
            return "aiconfigurator"
        if any((path / f"{name}{tail}").exists() for name in FILES for tail in (".csv", ".csv.gz")):
            return "vidur"
        if _runs(path):
            return "vllm-serve"
        hint = "a folder with meta.yaml (LLMServingSim), *_perf.parquet (aiconfigurator) or mlp.csv (Vidur)"
        raise InputError("the folder has no known format", file=str(path), hint=hint)
    text = read_text(path, "the source")
    known = next((reader.name for reader in READERS if reader.is_it(text)), None)
    if known is not None:
        return known
    if ".jsonl" in path.name:
        return "rows"
    if ".csv" in path.name:
        return "splitwise"
    tools = ", ".join(reader.tool for reader in READERS)
    hint = f"rows (.jsonl), Splitwise's perf_model.csv, or what an engine measures of itself: {tools}"
    raise InputError("the file has no known format", file=str(path), hint=hint)


def _runs(folder: Path) -> list[Path]:
    """The results of a sweep's runs, below its folder."""
    return sorted(path for path in folder.rglob("run=*.json") if path.is_file())


def read_source(path: Path, form: str = "auto", model: str = "", gpu: str = "", tensor_parallel: int = 1) -> KernelRows:
    """Read the rows of a path. `model` and `gpu` choose among several in the source, or name what it does not name."""
    check_choice(form, FORMATS, "format")
    if form == "auto":
        form = detect(path)
    if form in ENGINES:
        files = _runs(path) if path.is_dir() else [path]
        read = merge(ENGINES[form].read(read_text(each, "the source"), each) for each in files)
        return replace(read, model=model, gpu=gpu, tensor_parallel=tensor_parallel, sources=read.sources[:1])
    if form == "rows":
        return read_rows(path)
    if form == "llmservingsim":
        return read_llmservingsim(path, tensor_parallel)
    if form == "vidur":
        return read_vidur(path, tensor_parallel)
    if form == "splitwise":
        return read_splitwise(path, model, gpu, tensor_parallel)
    if not model:
        what = "aiconfigurator's tables hold the heads of many models: of which model?"
        raise InputError(what, file=str(path), hint="--model M")
    return read_aiconfigurator(path, model_of(model), tensor_parallel)
