"""Runs of real servers (vLLM, SGLang, TensorRT-LLM; H100 to GB300) as the scenarios that a careful user would write.

The rows come from the sample of aiconfigurator-core 0.12.0, of which about half is at hand. A row says model, GPU,
precision, parallel sizes, lengths and concurrency, and no flag of the server. Where InferenceX's public scripts
(SemiAnalysisAI/InferenceX, benchmarks/single_node) have one for all servers of an engine, it is taken: the KV cache
is fp8 but for gpt-oss on Hopper and bf16 models, no prefix cache. Rows of its three pairs of lengths are its own; its
client draws lengths from 0.8 to 1.0 of those named and sends ten requests a user, the first of all users at once.
"""

import csv
import gzip
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from docs.writers.accuracy.recipes import OLD_SGLANG_S, Recipe, is_old_sglang, recipe_of
from docs.writers.accuracy.served_row import NODE, Row
from simulator.hardware.gpus import find_gpu
from simulator.hardware.models import custom_model

ENGINES = {"vllm": "vllm", "sglang": "sglang", "trtllm": "tensorrt_llm"}
"""The sample's word for an engine, and the policy's name."""

GPUS = {"h100_sxm": "h100", "h200_sxm": "h200", "b200_sxm": "b200", "b300_sxm": "b300"}

DRAFTS = "1.2.0rc6.post3"
"""The image of TensorRT-LLM that InferenceX drafts with: DeepSeek-R1 in nvfp4 at TP 8, 4 users, 1,024 and 8,192 tokens
has a TPOT of 3.6 ms there, which is half of any other image's."""

WAVES = 10  # requests of each user, in InferenceX's client
FEW, FEWER_WAVES = 32, 4
"""With more users than these, or ranks that step together, a run has so many requests of each: it is long enough where
the server does not gather prompts."""

IN_STEP_WAVES = 8
"""The same of users with fixed lengths, who follow each other in the order in which they began."""

PAIRED = 0.92
"""Two rows of one setting, image and day, one of them below so much of the other's TPOT: that one drafts. So nine pairs
of SGLang 0.5.9 with DeepSeek-R1 in fp8 on B200, which InferenceX runs with and without MTP, and no others."""
DRAFTING = (("sglang", "Qwen/Qwen3.5-397B-A17B", "b200_sxm", "fp8", 4, 1),)
"""Rows that draft: with four GPUs they take 0.65 to 0.83 of what eight take in the same image (B200; 5.1 ms against 7.8
at 4 users)."""

REACHED = 0.6
"""Share of the datasheet's peak beyond which a row computes more than kernels do: those of the tables reach 0.57 in fp8
on H200 with 8,192 tokens. No row needs from 0.45 to 0.64 but those of a server that needs more in others."""
SETTING = (
    "image", "measured", "model_path", "system", "precision", "isl", "osl", "concurrency", "tp_size",
    "attention_dp_size", "moe_tp_size", "moe_ep_size",
)  # fmt: skip
DEEPSEEK_HEADS = 128

_MINIMAX = {
    "layers": 62, "hidden": 3072, "intermediate": 1536, "heads": 48, "kv_heads": 8, "head_dim": 128, "vocab": 200064,
    "max_model_len": 196608, "experts": 256, "active_experts": 8, "qk_norm": True,
    "qk_norm_whole": True,
}  # fmt: skip
_QWEN_3_5 = {
    "layers": 60, "hidden": 4096, "intermediate": 1024, "heads": 32, "kv_heads": 2, "head_dim": 256, "vocab": 248320,
    "max_model_len": 262144, "experts": 512, "active_experts": 10, "shared_experts": 1, "qk_norm": True,
    "attention_gate": True, "linear_layers": 45, "linear_key_heads": 16, "linear_value_heads": 64,
}  # fmt: skip
_GLM_5 = {
    "layers": 78, "hidden": 6144, "intermediate": 2048, "heads": 64, "kv_heads": 64, "head_dim": 192, "vocab": 154880,
    "max_model_len": 202752, "experts": 256, "active_experts": 8, "shared_experts": 1, "dense_layers": 3,
    "dense_intermediate": 12288, "q_lora_rank": 2048, "kv_lora_rank": 512, "rope_head_dim": 64, "index_topk": 2048,
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
    "Qwen/Qwen3.5-397B-A17B": _QWEN_3_5,
    "zhipuai/GLM-5": _GLM_5,
}
BLOCKS = (
    "MiniMaxAI/MiniMax-M2.5", "Qwen/Qwen3-32B", "deepseek-ai/DeepSeek-R1", "deepseek-ai/DeepSeek-V3",
    "Qwen/Qwen3.5-397B-A17B", "zhipuai/GLM-5",
)  # fmt: skip
"""Models that are published in fp8 with a scale for each block."""
DRAWN = (0.8, 1.0)  # shares of the lengths that are named, in InferenceX's client
DRIFT = (0.95, 1.05)
MIXING = ("vllm", "trtllm")
"""The same of other clients' answers, whose lengths are fixed. Users that start together would stay so for ever in
a simulation, and wait for each other's prompts; on a server that mixes prompts and decodes they drift apart. SGLang
lets prompts go first, so that those who wait catch up with each other: its measured TTFT is that of users in step."""
RECIPE = (4000, 1000)
"""Lengths of Dynamo's recipes, which serve NVIDIA's own checkpoints: in fp8 with a scale for each tensor."""


def contradiction_of(row: Row) -> str:
    """Why the row cannot be what it says; '' where it can.

    InferenceX ran one node of eight GPUs. A row of more has the product of two sizes in place of one: TP 8 with
    its experts over the same 8 GPUs became 64, tensor parallel 4 with attention data parallel 4 became 16.
    """
    setting = row.engine, row.model, row.system, row.precision, row.tensor_parallel, row.moe_expert
    drafts = row.drafts or (row.version == DRAFTS and "DeepSeek" in row.model)
    if drafts or setting in DRAFTING:
        return "drafts (MTP), which the row does not say"
    gpus = row.tensor_parallel * row.data_parallel
    if "DeepSeek" in row.model and row.tensor_parallel > NODE and DEEPSEEK_HEADS % row.tensor_parallel:
        return f"tensor parallel {row.tensor_parallel}, which is the GPUs of several servers: it divides no heads"
    if row.system in GPUS and gpus > NODE:
        return f"{gpus} GPUs of a node that has {NODE}"
    if not row.tpot_ms > 0:
        return "no TPOT"
    if (share := share_of_peak(row)) > REACHED:
        return f"computes {100 * share:.0f} % of what its GPUs can by the datasheet: prompts were found in a cache"
    return "a server of which other runs show that prompts were found in a cache" if row.cached else ""


def read_paired(path: Path, setting: Sequence[str]) -> list[tuple[dict[str, str], float]]:
    """The rows of a file of runs, each with the TPOT (ms) below which it drafts: its twin of the same setting does not.

    `setting` names the columns in which twins are equal.
    """
    with gzip.open(path, "rt", encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    settings = [tuple(row[name] for name in setting) for row in rows]
    slowest: dict[tuple[str, ...], float] = {}
    for row, key in zip(rows, settings, strict=True):
        slowest[key] = max(slowest.get(key, 0.0), float(row["silicon_tpot_ms"] or 0.0))
    return [(row, PAIRED * slowest[key]) for row, key in zip(rows, settings, strict=True)]


def read_rows(folder: Path, engine: str) -> list[Row]:
    """The aggregated runs of an engine, in the file's order."""
    rows = []
    for row, below_ms in read_paired(folder / f"agg_{engine}.csv.gz", SETTING):
        found = _row(engine, row)
        rows.append(replace(found, drafts=bool(row["image"]) and found.tpot_ms < below_ms))
    cached = {
        _server(row) for row in rows if share_of_peak(row) > REACHED and not contradiction_of(row).startswith("drafts")
    }
    return [replace(row, cached=_server(row) in cached) for row in rows]


def _server(row: Row) -> tuple[str, ...]:
    return row.version, row.model, row.system, row.precision, row.measured


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
        ttft_ms=number("silicon_ttft_ms", math.nan),
        tpot_ms=number("silicon_tpot_ms", math.nan),
        measured=row["measured"],
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
        blocks = row.model in BLOCKS and (row.isl, row.osl) != RECIPE
        return {**model, "dtype_bytes": 1, "matmul_dtype": "fp8_block" if blocks else "fp8",
                "kv_dtype_bytes": 1 if recipe_of(row).kv_fp8 else 2}  # fmt: skip
    if row.precision == "fp4":
        if "experts" not in model and model.get("base") not in ("deepseek-v3", "kimi-k2"):
            return {**model, "dtype_bytes": 0.5625, "matmul_dtype": "nvfp4", "kv_dtype_bytes": 1}
        return {**model, **_WIDE, "expert_dtype": "nvfp4", "kv_dtype_bytes": 1}
    if row.precision == "int4":
        return {**model, "expert_dtype": "int4"}
    return model


def waves_of(row: Row) -> int:
    """Requests that each user of the simulated run sends."""
    recipe = recipe_of(row)
    if row.is_nvidias:
        return IN_STEP_WAVES
    gathers = recipe.batch_wait is not None or recipe.receive_steps > 1  # users who began together drift apart slowly
    return WAVES if gathers or (row.concurrency <= FEW and row.data_parallel == 1) else FEWER_WAVES


def share_of_peak(row: Row) -> float:
    """What a run's products of matrices need, over the datasheet's peak; 0 where the model or TTFT is not known."""
    mapping = model_of(row)
    if mapping is None or math.isnan(row.ttft_ms):
        return 0.0
    model, gpu = custom_model(mapping), find_gpu(GPUS.get(row.system, row.system))
    share = 0.9 if row.is_inferencex else 1.0
    whole_s = 1e-3 * (row.ttft_ms + (share * row.osl - 1) * row.tpot_ms)
    weights = model.active_parameters - 2 * model.vocab * model.hidden
    flops = 2.0 * weights * share * (row.isl + row.osl) * row.concurrency / whole_s
    peak = 1e12 * max(gpu.tflops(model.multiplied_in), gpu.tflops(model.experts_multiplied_in))
    return flops / (peak * row.tensor_parallel * row.data_parallel)


def scenario_of(row: Row, waves: int | None = None) -> dict[str, Any] | None:
    """The scenario of a row; None where its model cannot be said. Each user sends `waves` requests."""
    model = model_of(row)
    if model is None:
        return None
    lengths = {
        name: {"dist": "uniform", "min": max(1, math.ceil(low * size)), "max": math.ceil(high * size)}
        if low < high
        else {"dist": "fixed", "value": size}
        for name, size, (low, high) in (
            ("input", row.isl, DRAWN if row.is_inferencex else (1.0, 1.0)),
            ("output", row.osl, _answers(row)),
        )
    }
    recipe = recipe_of(row)
    tensor, data = recipe.tensor or row.tensor_parallel, recipe.data or row.data_parallel
    hardware: dict[str, Any] = {"gpu": GPUS.get(row.system, row.system), "tensor_parallel": tensor}
    hardware["gpu_memory_utilization"] = recipe.memory
    if (recipe.expert or row.moe_expert) > 1:
        hardware["enable_expert_parallel"] = True
    return {
        "name": "row",
        "model": model,
        "hardware": hardware,
        "replicas": data,
        "cost": _cost(row, recipe),
        "sampling": {"temperature": 0},  # InferenceX's client asks for the likeliest token
        "front_end": {},
        **({"host": {"step_s": OLD_SGLANG_S}} if is_old_sglang(row) else {}),
        "engine": dict(_engine(row, recipe, data)),
        "workload": {
            "requests": (waves or waves_of(row)) * row.concurrency,
            "arrival": {"process": "closed_loop", "concurrency": row.concurrency},
            "classes": [{"name": "all", **lengths}],
        },
    }


def _answers(row: Row) -> tuple[float, float]:
    """The shares of the answer's length that is named, between which the client's lengths lie."""
    if row.is_inferencex:
        return DRAWN
    return DRIFT if row.engine in MIXING and not row.is_nvidias else (1.0, 1.0)


def _cost(row: Row, recipe: Recipe) -> dict[str, Any]:
    marlin = row.engine == "vllm" and "gpt-oss" in row.model and row.system.startswith("h")
    captured = {"max_capture_tokens": recipe.captured} if recipe.captured is not None else {}
    fused = {"fuse_allreduce_rms": recipe.fused} if recipe.fused is not None and row.tensor_parallel > 1 else {}
    return {"kind": "profile", **({"moe_backend": "marlin"} if marlin else {}), **captured, **fused}


def _engine(row: Row, recipe: Recipe, data: int) -> Iterator[tuple[str, Any]]:
    yield "policy", ENGINES[row.engine]
    yield "max_num_seqs", max(1, math.ceil(row.concurrency / data))
    yield (
        "max_num_batched_tokens",
        recipe.batch_tokens or max(8192, row.concurrency + row.isl * (row.engine == "trtllm")),
    )
    if row.engine == "vllm":
        version = ".".join(row.version.split(".")[:2]) if row.version[:1].isdigit() else ""
        if version:
            yield "version", version
        yield "async_scheduling", not version or tuple(map(int, version.split("."))) >= (0, 14)
        if "gpt-oss" in row.model:  # groups change what memory holds, and one block at a time takes long to simulate
            yield "disable_hybrid_kv_cache_manager", True
    elif row.engine == "trtllm":
        yield "async_scheduling", True
        if row.version[:1].isdigit():
            yield "version", ".".join(row.version.split(".")[:2])
        yield "enable_chunked_prefill", recipe.chunks
        if recipe.batch_wait is not None:
            yield from zip(("batch_wait_timeout_iters", "batch_wait_max_tokens_ratio"), recipe.batch_wait, strict=True)
    elif recipe.receive_steps > 1:
        yield "scheduler_recv_interval", recipe.receive_steps
    yield "enable_prefix_caching", False
    yield "block_size", 16
