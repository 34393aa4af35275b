"""The precision of a model's weights, products and KV cache from `quantization_config` of its config.json.

What the files of the common quantisers look like, and what vLLM makes of them:

- fp8 (`quant_method: fp8`): a scale for each matrix, or for each block with `weight_block_size`;
- ModelOpt (`quant_method: modelopt`): `quant_algo` FP8 or NVFP4. A `kv_cache_scheme` or `kv_cache_quant_algo` of 8-bit
  floats makes the cache fp8 (`get_kv_cache_quant_algo_string` in vllm/utils/torch_utils.py);
- compressed-tensors: `config_groups`, each with `weights` and `input_activations` of so many bits; floats of 8 bits are
  fp8, of 4 bits with a scale for each 16 nvfp4. A `kv_cache_scheme` makes the cache fp8 (vLLM's Attention layer).

Embeddings and head stay as wide as they were in all of them; here they count like the other weights, and the head is
multiplied in bf16 all the same.

Experts may be quantised alone: gpt-oss keeps attention, router and embeddings in bf16 beside experts in mxfp4, and so
do files of ModelOpt (NVFP4) and compressed-tensors (int4) that leave out attention (`ignore`, `exclude_modules`). vLLM
quantises nothing else of these either (vllm/model_executor/layers/quantization/mxfp4.py, 0.17.1).
"""

from collections.abc import Mapping
from typing import Any

from simulator.errors import InputError
from simulator.hardware.precision import FP8, FP8_BLOCK, FP8_CACHE, NVFP4

PLAIN: Mapping[str, object] = {"dtype_bytes": 2}  # vLLM loads float32 weights as 16 bits

NVFP4_GROUP = 16
INT4_GROUP = 128  # what `EXPERT_BYTES` has
HINT = "allowed: fp8, modelopt (FP8, NVFP4), compressed-tensors (floats); or a mapping of dimensions with dtype_bytes"


def precision_of(config: Mapping[str, Any]) -> dict[str, object]:
    """Fields of `Model` that follow from a config.json's quantization. InputError for one that is not understood."""
    quantization = config.get("quantization_config")
    if not quantization:
        return dict(PLAIN)
    if not isinstance(quantization, dict):
        raise _refused("quant_method ", quantization)
    method = quantization.get("quant_method")
    if method == "fp8":
        return dict(FP8_BLOCK if quantization.get("weight_block_size") else FP8)
    if isinstance(method, str) and method.startswith("modelopt"):
        return _modelopt(quantization)
    if method == "compressed-tensors":
        return _compressed_tensors(quantization)
    raise _refused("quant_method ", method)


def experts_apart(config: Mapping[str, Any]) -> Mapping[str, object]:
    """Fields of `Model` that say the precision of experts where these alone are quantised; none where they are not."""
    quantization = config.get("quantization_config")
    if not isinstance(quantization, dict):
        return {}
    method = str(quantization.get("quant_method"))
    if method == "mxfp4":
        return {"expert_dtype": "mxfp4"}
    inner = quantization.get("quantization", quantization)
    left_out = [name for key in ("ignore", "exclude_modules") for name in inner.get(key) or ()]
    if not any("self_attn" in str(name) for name in left_out):
        return {}
    if method.startswith("modelopt") and str(inner.get("quant_algo")).upper() == "NVFP4":
        return {"expert_dtype": "nvfp4"}
    groups = inner.get("config_groups")
    weights = [group.get("weights") or {} for group in groups.values()] if isinstance(groups, dict) else []
    if method == "compressed-tensors" and weights and all(_is_int4(each) for each in weights):
        size = weights[0].get("group_size")
        return {"expert_dtype": "int4", "expert_group_size": 0 if size in (None, INT4_GROUP) else size}
    return {}


def _is_int4(weights: Mapping[str, Any]) -> bool:
    return weights.get("num_bits") == 4 and weights.get("type") == "int"


def _modelopt(quantization: Mapping[str, Any]) -> dict[str, object]:
    inner = quantization.get("quantization", quantization)
    algorithm = inner.get("quant_algo") if isinstance(inner, dict) else None
    found = {"FP8": FP8, "NVFP4": NVFP4}.get(str(algorithm).upper())
    if found is None:
        raise _refused("quant_algo ", algorithm)
    cache = inner.get("kv_cache_scheme") or inner.get("kv_cache_quant_algo")
    return {**found, **(FP8_CACHE if _is_fp8(cache) else {})}


def _compressed_tensors(quantization: Mapping[str, Any]) -> dict[str, object]:
    groups = quantization.get("config_groups")
    found = [_group(group) for group in groups.values()] if isinstance(groups, dict) else []
    if not found:
        raise _refused("config_groups ", groups)
    if any(each != found[0] for each in found):
        raise InputError(
            "config.json: quantization_config.config_groups differ: layers of several precisions are not understood",
            hint=HINT,
        )
    return {**found[0], **(FP8_CACHE if _is_fp8(quantization.get("kv_cache_scheme")) else {})}


def _group(group: Any) -> Mapping[str, object]:
    """The precision of a group of layers: weights and what they are multiplied with must be floats of one width."""
    parts = group if isinstance(group, dict) else {}
    weights, inputs = _bits(parts.get("weights")), _bits(parts.get("input_activations"))
    if weights == inputs == "float 8":
        return FP8_BLOCK if group["weights"].get("strategy") == "block" else FP8
    if weights == inputs == "float 4" and group["weights"].get("group_size") == NVFP4_GROUP:
        return NVFP4
    raise InputError(
        f"config.json: quantization_config: weights of {weights or 'unknown width'} times inputs of"
        f" {inputs or 'bf16'} are not understood",
        hint=HINT,
    )


def _bits(part: Any) -> str:
    return f"{part.get('type')} {part.get('num_bits')}" if isinstance(part, dict) else ""


def _is_fp8(cache: Any) -> bool:
    return _bits(cache) == "float 8" if isinstance(cache, dict) else str(cache).upper() == "FP8"


def _refused(what: str, value: object) -> InputError:
    return InputError(f"config.json: quantization_config.{what}{value!r} is not understood", hint=HINT)
