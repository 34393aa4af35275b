"""Names under which models are published: without owner, variant and precision, and what a precision in a name means.

Qwen, DeepSeek and MiniMax publish their fp8 weights with a scale for each block of 128 x 128, as the
`weight_block_size` of their config.json says, and GLM-5's are taken to be so; those of GLM-4.5, NVIDIA's and others'
have one for each matrix or row.
"""

import re
from collections.abc import Mapping
from typing import Any

from simulator.hardware.precision import BF16, FP8, FP8_BLOCK, NVFP4

_VARIANT = r"-(?:instruct|chat|hf|it|base|exp|terminus|v0\.\d|\d{4})$"
_REASONING = "-thinking"
_WORDS = ("nvfp4", "fp4", "fp8", "bf16")
_BY_BLOCK = ("qwen", "deepseek-ai", "minimaxai")


def bare_name(name: str) -> str:
    """Return a published name without owner, precision and variant, in small letters."""
    text = name.rstrip("/").rpartition("/")[2].lower().removeprefix("meta-").removeprefix("nvidia-")
    text = re.sub(r"-(?:nvfp4|fp4|fp8|bf16)\b.*$", "", text)
    while (shorter := re.sub(_VARIANT, "", text)) != text:
        text = shorter
    return text


def without_reasoning(bare: str) -> str:
    """Return a bare name without what says that the model reasons, which changes no dimension of Qwen's."""
    return bare.removesuffix(_REASONING)


def precision_in(name: str) -> str:
    """Return the precision that a published name ends in: nvfp4, fp8_block, fp8, bf16; '' for none."""
    owner, _, text = name.rstrip("/").lower().rpartition("/")
    word = next((each for each in _WORDS if f"-{each}" in text), "")
    if word == "fp8" and (owner in _BY_BLOCK or text.startswith("glm-5")):
        return "fp8_block"
    return "nvfp4" if word == "fp4" else word


def fields_in(name: str, *, latent: bool) -> Mapping[str, Any]:
    """Return the fields of `Model` that the precision in a name stands for; none where there is none.

    Of models with latent attention NVIDIA quantises the experts alone to nvfp4.
    """
    word = precision_in(name)
    if word == "nvfp4" and latent:
        return {"dtype_bytes": 2, "matmul_dtype": "bf16", "expert_dtype": "nvfp4"}
    return {"nvfp4": NVFP4, "fp8_block": FP8_BLOCK, "fp8": FP8, "bf16": BF16}.get(word, {})
