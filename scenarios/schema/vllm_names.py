"""Hints for arguments of `vllm serve` that `engine:` does not take: the keys where they belong."""

from collections.abc import Mapping

from scenarios.servers.vllm import VLLM_SERVE

_NO_LIMIT = "has no counterpart: lengths are bounded by the workload, and a request beyond the KV cache is rejected"
_ONE_PASS = "has no counterpart: any number of prompts share a step, as far as max_num_batched_tokens goes"

_PLACES = {flag.names.split()[0].removeprefix("--").replace("-", "_"): flag.key for flag in VLLM_SERVE.flags}
_TAKEN = {
    argument: f"is `{key}`" if "." in key else f"is the top-level `{key}`"
    for argument, key in _PLACES.items()
    if not argument.startswith("no_") and not key.startswith("model.") and key != f"engine.{argument}"
}
BELONGS: Mapping[str, str] = {
    **_TAKEN,
    "model": "is the top-level `model`",
    "generation_config": "is the top-level `sampling`",
    "swap_space": "is `hardware.swap_space_gib`",
    "dtype": "is of the model: `model: {base: NAME, dtype_bytes: 2}` (1 for fp8, 4 for float32)",
    "quantization": "is of the model: `model: {base: NAME, quantization: fp8}`",
    "kv_cache_dtype": "is of the model: `model: {base: NAME, kv_cache_dtype: fp8}`",
    "enforce_eager": "is `cost: {kind: profile, cuda_graphs: false}`; other costs do not tell graphs from eager steps",
    "max_model_len": _NO_LIMIT,
    "max_long_partial_prefills": _ONE_PASS,
    "seed": "is the top-level `seed`",
}
"""The end of the sentence that begins with the argument, by argument."""


def where(argument: str) -> str | None:
    """Return the key of an argument of `vllm serve`, as a hint; None for other words. Hyphens count as underscores."""
    name = argument.removeprefix("--").replace("-", "_")
    return f"vLLM's {name} {BELONGS[name]}" if name in BELONGS else None
