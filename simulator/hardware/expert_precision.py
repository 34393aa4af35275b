"""Experts that are quantised alone, from `quantization_config` of a model's config.json.

gpt-oss keeps attention, router and embeddings in bf16 beside experts in mxfp4 (`modules_to_not_convert`); files of
ModelOpt (NVFP4) and of compressed-tensors (int4) do alike where they leave out attention (`ignore`,
`exclude_modules`). vLLM quantises nothing else of these either: its mxfp4 has no linear layers
(vllm/model_executor/layers/quantization/mxfp4.py, 0.17.1).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_ATTENTION = "self_attn"


def experts_apart(config: Mapping[str, Any]) -> str | None:
    """The precision of experts (`Model.expert_dtype`) where these alone are quantised; None where they are not."""
    quantization = config.get("quantization_config")
    if not isinstance(quantization, dict):
        return None
    method = str(quantization.get("quant_method"))
    if method == "mxfp4":
        return "mxfp4"
    inner = quantization.get("quantization", quantization)
    left_out = [name for key in ("ignore", "exclude_modules") for name in inner.get(key) or ()]
    if not any(_ATTENTION in str(name) for name in left_out):
        return None
    if method.startswith("modelopt") and str(inner.get("quant_algo")).upper() == "NVFP4":
        return "nvfp4"
    groups = inner.get("config_groups")
    weights = [group.get("weights") or {} for group in groups.values()] if isinstance(groups, dict) else []
    if method == "compressed-tensors" and weights and all(_is_int4(each) for each in weights):
        return "int4"
    return None


def _is_int4(weights: Mapping[str, Any]) -> bool:
    return weights.get("num_bits") == 4 and weights.get("type") == "int"
