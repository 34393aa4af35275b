"""Runs of real servers (vLLM, SGLang, TensorRT-LLM; H100 to GB300) as the scenarios that a careful user would write.

The rows come from the sample of aiconfigurator-core 0.12.0, of which about half is at hand. A row says model, GPU,
precision, parallel sizes, lengths and concurrency, and no flag of the server. Where InferenceX's public scripts
(SemiAnalysisAI/InferenceX, benchmarks/single_node) have one for all servers of an engine, it is taken: the KV cache
is fp8 but for gpt-oss on Hopper and bf16 models, no prefix cache, lengths from 0.8 to 1.0 of those named.
"""

import csv
import gzip
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ENGINES = {"vllm": "vllm", "sglang": "sglang", "trtllm": "tensorrt_llm"}
"""The sample's word for an engine, and the policy's name."""

GPUS = {"h100_sxm": "h100", "h200_sxm": "h200", "b200_sxm": "b200", "b300_sxm": "b300"}

NODE = 8  # GPUs that NVLink connects where it is no rack (a name of `_sxm`)

DRAFTS = "1.2.0rc6.post3"
"""The image of TensorRT-LLM that InferenceX drafts with: DeepSeek-R1 in nvfp4 at TP 8, 4 users, 1,024 and 8,192 tokens
has a TPOT of 3.6 ms there, which is half of any other image's."""

_MINIMAX = {
    "layers": 62, "hidden": 3072, "intermediate": 1536, "heads": 48, "kv_heads": 8, "head_dim": 128, "vocab": 200064,
    "max_model_len": 196608, "experts": 256, "active_experts": 8, "qk_norm": True,
}  # fmt: skip
_WIDE = {"dtype_bytes": 2, "matmul_dtype": "bf16"}
MODELS: Mapping[str, Mapping[str, Any]] = {
    "MiniMaxAI/MiniMax-M2.5": _MINIMAX,
    "Qwen/Qwen3-32B": {"base": "qwen3-32b"},
    "nvidia/Qwen3-32B-NVFP4": {"base": "qwen3-32b"},
    "meta-llama/Llama-3.1-70B": {"base": "llama-3.1-70b"},
    "nvidia/Llama-3.1-8B-Instruct-FP8": {"base": "llama-3.1-8b"},
    "openai/gpt-oss-120b": {"base": "gpt-oss-120b"},
    "moonshotai/Kimi-K2.5": {"base": "kimi-k2", **_WIDE},
    "deepseek-ai/DeepSeek-R1": {"base": "deepseek-v3"},
    "deepseek-ai/DeepSeek-V3": {"base": "deepseek-v3"},
    "nvidia/DeepSeek-R1-NVFP4": {"base": "deepseek-v3"},
    "nvidia/DeepSeek-V3.1-NVFP4": {"base": "deepseek-v3"},
}
BLOCKS = ("MiniMaxAI/MiniMax-M2.5", "deepseek-ai/DeepSeek-R1", "deepseek-ai/DeepSeek-V3")
"""Models that are published in fp8 with a scale for each block."""


@dataclass(frozen=True, slots=True)
class Row:
    """A run: what ran, how, and what was measured (milliseconds; NaN where it was not)."""

    name: str
    engine: str  # the sample's word
    version: str
    model: str
    system: str
    precision: str
    isl: int
    osl: int
    concurrency: int
    tensor_parallel: int
    data_parallel: int  # of attention
    moe_tensor: int
    moe_expert: int
    has_image: bool
    ttft_ms: float
    tpot_ms: float

    @property
    def cell(self) -> str:
        """Engine, model, GPU and precision."""
        return " ".join((self.engine, self.model.rpartition("/")[2], self.system, self.precision))

    @property
    def contradiction(self) -> str:
        """Why the row cannot be what it says; '' where it can.

        InferenceX ran one node of eight GPUs. A row of more has the product of two sizes in place of one: TP 8 with
        its experts over the same 8 GPUs became 64, tensor parallel 4 with attention data parallel 4 became 16.
        """
        if self.version == DRAFTS and "DeepSeek" in self.model:
            return "drafts (MTP), which the row does not say"
        gpus = self.tensor_parallel * self.data_parallel
        if self.system in GPUS and gpus > NODE:
            return f"{gpus} GPUs of a node that has {NODE}"
        if not self.tpot_ms > 0:
            return "no TPOT"
        return ""


def read_rows(folder: Path, engine: str) -> list[Row]:
    """The aggregated runs of an engine, in the file's order."""
    with gzip.open(folder / f"agg_{engine}.csv.gz", "rt", encoding="utf-8", newline="") as file:
        return [_row(engine, row) for row in csv.DictReader(file)]


def _row(engine: str, row: Mapping[str, str]) -> Row:
    def number(name: str, missing: float) -> float:
        return float(row[name]) if row[name] else missing

    def whole(name: str) -> int:
        return max(1, int(number(name, 1)))

    return Row(
        name=row["id"],
        engine=engine,
        version=row["backend_version"],
        model=row["model_path"],
        system=row["system"],
        precision=row["precision"] or "bf16",
        isl=int(row["isl"]),
        osl=int(row["osl"]),
        concurrency=int(number("concurrency", number("batch_size", 1))),
        tensor_parallel=whole("tp_size"),
        data_parallel=whole("attention_dp_size"),
        moe_tensor=whole("moe_tp_size"),
        moe_expert=whole("moe_ep_size"),
        has_image=bool(row["image"]),
        ttft_ms=number("silicon_ttft_ms", math.nan),
        tpot_ms=number("silicon_tpot_ms", math.nan),
    )


def model_of(row: Row) -> dict[str, Any] | None:
    """The model as a mapping of dimensions and precisions; None where its layers are of a kind that is not modelled."""
    if row.model not in MODELS:
        return None
    model = dict(MODELS[row.model])
    if row.model == "openai/gpt-oss-120b":
        blackwell = not row.system.startswith("h")
        return {**model, "expert_dtype": "mxfp4_mxfp8", "kv_dtype_bytes": 1} if blackwell else model
    if row.precision == "fp8":
        return {**model, "dtype_bytes": 1, "matmul_dtype": "fp8_block" if row.model in BLOCKS else "fp8",
                "kv_dtype_bytes": 2 if row.model in BLOCKS and row.system.startswith("h") else 1}  # fmt: skip
    if row.precision == "fp4":
        if "experts" not in model and model.get("base") not in ("deepseek-v3", "kimi-k2"):
            return {**model, "dtype_bytes": 0.5625, "matmul_dtype": "nvfp4", "kv_dtype_bytes": 1}
        return {**model, **_WIDE, "expert_dtype": "nvfp4", "kv_dtype_bytes": 1}
    if row.precision == "int4":
        return {**model, "expert_dtype": "int4"}
    return model


def scenario_of(row: Row, waves: int) -> dict[str, Any] | None:
    """The scenario of a row; None where its model cannot be said. `waves` times the concurrency are its requests."""
    model = model_of(row)
    if model is None:
        return None
    low = 0.8 if row.has_image else 1.0
    lengths = {
        name: {"dist": "uniform", "min": max(1, math.ceil(low * size)), "max": size}
        if low < 1
        else {"dist": "fixed", "value": size}
        for name, size in (("input", row.isl), ("output", row.osl))
    }
    hardware: dict[str, Any] = {"gpu": GPUS.get(row.system, row.system), "tensor_parallel": row.tensor_parallel}
    hardware["gpu_memory_utilization"] = 0.95
    if row.moe_expert > 1:
        hardware["enable_expert_parallel"] = True
    return {
        "name": "row",
        "model": model,
        "hardware": hardware,
        "replicas": row.data_parallel,
        "cost": _cost(row),
        "front_end": {},
        "engine": dict(_engine(row)),
        "workload": {
            "requests": max(waves * row.concurrency, 2 * waves),
            "arrival": {"process": "closed_loop", "concurrency": row.concurrency},
            "classes": [{"name": "all", **lengths}],
        },
    }


def _cost(row: Row) -> dict[str, Any]:
    marlin = row.engine == "vllm" and "gpt-oss" in row.model and row.system.startswith("h")
    return {"kind": "profile", **({"moe_backend": "marlin"} if marlin else {})}


def _engine(row: Row) -> Iterator[tuple[str, Any]]:
    large = not row.system.startswith("h100")
    yield "policy", ENGINES[row.engine]
    yield "max_num_seqs", max(1, math.ceil(row.concurrency / row.data_parallel))
    if row.engine == "vllm":
        version = ".".join(row.version.split(".")[:2]) if row.version[:1].isdigit() else ""
        if version:
            yield "version", version
        yield "async_scheduling", not version or tuple(map(int, version.split("."))) >= (0, 14)
        yield "max_num_batched_tokens", 16384 if large and not row.system.startswith("h") else 8192
    elif row.engine == "sglang":
        yield "max_num_batched_tokens", 32768
    else:
        yield "max_num_batched_tokens", max(8192, row.concurrency + row.isl)
        yield "async_scheduling", True
