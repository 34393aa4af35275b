"""aiconfigurator's kernel tables: parquet files of an engine's kernels on one GPU, latencies in milliseconds.

gemm_perf, generation_attention_perf (context = step + 1), context_attention_perf (fresh prompts), custom_allreduce_perf
(`message_size` in elements). They lie in one of two layouts (`find_source`): all files in a folder
`<gpu>/vllm_<version>`, or, as the wheel aiconfigurator-core has them below `systems/data`, by family in
`<gpu>/<family>/<engine>/<version>`, the engine being vllm, sglang or trtllm.

Of vLLM each cell has one row, of the kernel that vLLM itself chose for it (`kernel_source`): the rows are of vLLM's
layers (collector/vllm/collect_gemm.py, collect_attn.py), and its own rules pick the kernel (attention:
`_get_backend_priorities` in vllm/platforms/cuda.py, FlashInfer first on B200 to GB300, else FlashAttention; with an fp8
cache, of which FlashAttention 2 has no kernels, FlashInfer, and Triton for heads that neither has). Heads are those of
one GPU; of attention, only the rows of the asked model's heads are taken: bf16 cache, no window.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from calibration.cold import cold_decodes, cold_products
from calibration.rows import KernelRows, Table, gpu_name, make_table
from simulator.errors import InputError
from simulator.hardware.gpus import GPUS, Gpu
from simulator.hardware.models import Model
from simulator.timing.profile.surface import Array

if TYPE_CHECKING:
    import pandas as pd

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

ENGINES = {"vllm": "vLLM", "sglang": "SGLang", "trtllm": "TensorRT-LLM"}
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
        return f"{ENGINES[self.engine]} {self.version}"

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
        what = f"no tables of {ENGINES[engine]} {version}".rstrip() + (
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
