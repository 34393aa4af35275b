"""Precisions by name, as vLLM's `--quantization` and `--kv-cache-dtype` have them: what they mean for a model."""

from collections.abc import Mapping
from typing import Any

from simulator.errors import InputError
from simulator.hardware.dimensions import check_choice
from simulator.hardware.model import EXPERT_BYTES

NVFP4_BYTES = EXPERT_BYTES["nvfp4"]

BF16: Mapping[str, Any] = {"dtype_bytes": 2, "matmul_dtype": "auto", "expert_dtype": "auto"}
FP8: Mapping[str, object] = {"dtype_bytes": 1}
FP8_BLOCK: Mapping[str, Any] = {"dtype_bytes": 1, "matmul_dtype": "fp8_block"}
NVFP4: Mapping[str, object] = {"dtype_bytes": NVFP4_BYTES, "matmul_dtype": "nvfp4"}
FP8_CACHE: Mapping[str, object] = {"kv_dtype_bytes": 1}

WORDS: Mapping[str, Mapping[str, Mapping[str, object]]] = {
    "quantization": {
        "none": {"dtype_bytes": 2, "expert_dtype": "auto"}, "fp8": {**FP8, "expert_dtype": "auto"},
        "fp8_block": {**FP8_BLOCK, "expert_dtype": "auto"}, "nvfp4": {**NVFP4, "expert_dtype": "auto"},
        "int4": {"dtype_bytes": EXPERT_BYTES["int4"], "matmul_dtype": "bf16", "expert_dtype": "auto"},
    },
    "kv_cache_dtype": {"bfloat16": {"kv_dtype_bytes": 2}, "fp8": FP8_CACHE},
}  # fmt: skip
"""Fields of `Model` that a word stands for, by the key of a mapping that takes it."""


def spelled_out(mapping: Mapping[str, object]) -> dict[str, object]:
    """Return a mapping of dimensions with the fields of `Model` in place of `quantization` and `kv_cache_dtype`.

    All weights take a `quantization`, those of experts too. Raises InputError for an unknown word, and for a word
    beside a field that it stands for.
    """
    found = {key: value for key, value in mapping.items() if key not in WORDS}
    for key in WORDS.keys() & mapping.keys():
        fields = dict(WORDS[key][check_choice(str(mapping[key]), WORDS[key], key)])
        if key == "quantization":
            fields = {"matmul_dtype": "auto", **fields}
        if both := sorted(fields.keys() & mapping.keys()):
            raise InputError(f"model: {key} says the precision, as {both[0]} does", hint=f"leave {both[0]} out")
        found |= fields
    return found
