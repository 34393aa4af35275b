"""Hints for arguments of `vllm serve` that `engine:` does not take: the keys where they belong."""

from __future__ import annotations

from collections.abc import Mapping

_NO_LIMIT = "has no counterpart: lengths are bounded by the workload, and a request beyond the KV cache is rejected"
_ONE_PASS = "has no counterpart: any number of prompts share a step, as far as max_num_batched_tokens goes"

BELONGS: Mapping[str, str] = {
    "model": "is the top-level `model`",
    "tensor_parallel_size": "is `hardware.tensor_parallel`",
    "pipeline_parallel_size": "has no counterpart: a replica is one pipeline stage; see `hardware.tensor_parallel`",
    "data_parallel_size": "is the top-level `replicas`",
    "enable_expert_parallel": "is `hardware.enable_expert_parallel`",
    "gpu_memory_utilization": "is `hardware.gpu_memory_utilization`",
    "num_gpu_blocks_override": "is `hardware.num_gpu_blocks`",
    "swap_space": "is `hardware.swap_space_gib`",
    "dtype": "is of the model: `model: {base: NAME, dtype_bytes: 2}` (1 for fp8, 4 for float32)",
    "quantization": "is of the model: `model: {base: NAME, dtype_bytes: 1}` for fp8 weights",
    "kv_cache_dtype": "is of the model: `model: {base: NAME, kv_dtype_bytes: 1}` (1 for fp8, 2 for bfloat16)",
    "enforce_eager": "is `cost: {kind: profile, cuda_graphs: false}`; other costs do not tell graphs from eager steps",
    "max_model_len": _NO_LIMIT,
    "max_num_partial_prefills": _ONE_PASS,
    "max_long_partial_prefills": _ONE_PASS,
    "scheduling_policy": "is `engine.order`: fcfs or priority",
    "scheduler_reserve_full_isl": "is `engine.reserve_full_isl`",
    "seed": "is the top-level `seed`",
}
"""The end of the sentence that begins with the argument, by argument."""


def where(argument: str) -> str | None:
    """Return the key of an argument of `vllm serve`, as a hint; None for other words. Hyphens count as underscores."""
    name = argument.removeprefix("--").replace("-", "_")
    return f"vLLM's {name} {BELONGS[name]}" if name in BELONGS else None
