"""Where the config.json of a model with several kinds of layers says what they are.

Names and defaults of fields are those of transformers' configuration classes; the state's precision is found where
vLLM looks for it (model_executor/models/config.py of 0.33).
"""

from collections.abc import Mapping
from typing import Any

from simulator.errors import InputError
from simulator.hardware.layer_types import CHUNK, DENSE, EXPERTS, FULL, GATED_DELTA, MAMBA, WINDOW, from_words

_LINEAR = {
    "linear_key_heads": "linear_num_key_heads", "linear_value_heads": "linear_num_value_heads",
    "linear_head_dim": "linear_key_head_dim", "linear_value_head_dim": "linear_value_head_dim",
    "linear_conv_kernel_dim": "linear_conv_kernel_dim",
}  # fmt: skip
_EXPERTS = {"experts": "num_experts", "active_experts": "num_experts_per_tok", "intermediate": "moe_intermediate_size"}
_MAMBA = {
    "linear_key_heads": "n_groups", "linear_value_heads": "mamba_num_heads",
    "linear_head_dim": "ssm_state_size", "linear_value_head_dim": "mamba_head_dim",
    "linear_conv_kernel_dim": "conv_kernel",
}  # fmt: skip
_QWEN_DEFAULTS = {
    "linear_num_key_heads": 16, "linear_num_value_heads": 32, "linear_key_head_dim": 128, "linear_value_head_dim": 128,
    "linear_conv_kernel_dim": 4, "head_dim": 256, "max_position_embeddings": 32768,
}  # fmt: skip
_QWEN = {"qk_norm": True, "attention_gate": True}
_PLAIN = {"attention_bias": False, "mlp_bias": False}

HYBRIDS: Mapping[str, Mapping[str, Any]] = {
    "gemma3_text": {
        "names": {"sliding_window": "sliding_window"}, "constants": {"tie_embeddings": True, "qk_norm": True},
        "only": _PLAIN, "pattern": WINDOW * 5 + FULL, "interval": "sliding_window_pattern",
        "defaults": {"vocab_size": 262208, "max_position_embeddings": 131072, "head_dim": 256, "sliding_window": 4096,
                     "num_attention_heads": 8, "num_key_value_heads": 4},
    },
    "qwen3_next": {
        "names": {**_LINEAR, **_EXPERTS}, "constants": _QWEN, "pattern": GATED_DELTA * 3 + FULL,
        "only": {**_PLAIN, "decoder_sparse_step": 1, "mlp_only_layers": []}, "interval": "full_attention_interval",
        "defaults": {**_QWEN_DEFAULTS, "num_experts": 512, "num_experts_per_tok": 10, "moe_intermediate_size": 512},
    },
    "qwen3_5_text": {
        "names": _LINEAR, "constants": _QWEN, "only": _PLAIN, "pattern": GATED_DELTA * 3 + FULL,
        "interval": "full_attention_interval", "defaults": _QWEN_DEFAULTS,
    },
    "qwen3_5_moe_text": {
        "names": {**_LINEAR, **_EXPERTS}, "constants": _QWEN, "only": _PLAIN, "pattern": GATED_DELTA * 3 + FULL,
        "interval": "full_attention_interval",
        "defaults": {**_QWEN_DEFAULTS, "num_experts": 256, "num_experts_per_tok": 8, "moe_intermediate_size": 512},
    },
    "llama4_text": {
        "names": {"experts": "num_local_experts", "active_experts": "num_experts_per_tok",
                  "attention_chunk_size": "attention_chunk_size"},
        "constants": {"shared_experts": 1}, "only": _PLAIN, "pattern": CHUNK * 3 + FULL,
        "interval": "no_rope_layer_interval", "defaults": {"attention_chunk_size": 8192, "head_dim": 128},
    },
    "nemotron_h": {
        "names": _MAMBA, "constants": {"gated_mlp": False}, "pattern": FULL,
        "only": {"attention_bias": False, "mlp_bias": False, "use_bias": False, "moe_latent_size": None},
        "defaults": {"n_groups": 8, "mamba_num_heads": 128, "ssm_state_size": 128, "mamba_head_dim": 64,
                     "conv_kernel": 4, "head_dim": 128, "mamba_ssm_cache_dtype": "float32"},
    },
}  # fmt: skip
"""By `model_type`: fields beside the usual ones, what all have, what none may differ in, and the usual pattern."""
LANGUAGE_PARTS = (*HYBRIDS, "deepseek_v3", "kimi_k2", "qwen3_vl_text", "qwen3_vl_moe_text")
"""Kinds of language models whose file stands inside that of a model with images, as `text_config`."""
_BLOCKS = {"mamba": MAMBA, "moe": EXPERTS, "attention": FULL, "mlp": DENSE}

_STATE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2, "auto": 2}


def language_part(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The part of a config.json that describes the language model, where that is one of `LANGUAGE_PARTS`."""
    inner = config.get("text_config")
    if not isinstance(inner, dict) or inner.get("model_type") not in LANGUAGE_PARTS:
        return config
    kept = ("quantization_config", "torch_dtype", "dtype", "tie_word_embeddings")
    outer = {key: config[key] for key in kept if key in config}
    return {**outer, **inner}


def kinds_of_layers(config: Mapping[str, Any], usual: str, interval_key: str) -> str:
    """The letters of the layers: as the file lists them, or by its interval, or the `usual` pattern."""
    if isinstance(written := config.get("hybrid_override_pattern"), str):
        return written
    if "layers_block_type" in config:
        return _blocks(config["layers_block_type"])
    if config["model_type"] == "nemotron_h":
        raise InputError("config.json: hybrid_override_pattern or layers_block_type is missing, which lists the layers")
    if config.get("layer_types"):
        words = config["layer_types"]
        if not isinstance(words, list):
            raise InputError(f"config.json: layer_types must be a list, not {words!r}")
        return from_words(words)
    interval = config.get(interval_key)
    return usual[0] * (interval - 1) + FULL if isinstance(interval, int) and interval > 0 else usual


def _blocks(words: object) -> str:
    """The letters of `layers_block_type`. InputError on a word that is not known."""
    if not isinstance(words, list) or not words or set(words) - set(_BLOCKS):
        raise InputError(f"config.json: layers_block_type {words!r} is not understood", hint=f"known: {[*_BLOCKS]}")
    return "".join([_BLOCKS[word] for word in words])


def hybrid_fields(config: Mapping[str, Any], kind: str, pattern: str) -> dict[str, object]:
    """Dimensions of a model of `HYBRIDS` that no single field says."""
    found: dict[str, object] = {}
    if kind == "nemotron_h":
        found["intermediate"] = config.get("intermediate_size")
        if EXPERTS in pattern:
            found |= {"experts": config.get("n_routed_experts"), "active_experts": config.get("num_experts_per_tok")}
            found |= {"intermediate": config.get("moe_intermediate_size"), "shared_experts": _shared(config)}
            found |= {"dense_intermediate": config.get("intermediate_size")} if DENSE in pattern else {}
    elif kind == "llama4_text":
        return _llama_4(config)
    elif "moe_intermediate_size" in config:
        found["shared_experts"] = _shared(config)
    dtype = config.get("mamba_ssm_dtype") or config.get("mamba_ssm_cache_dtype") or "auto"
    if dtype not in _STATE_BYTES:
        raise InputError(f"config.json: mamba_ssm_dtype {dtype!r} is not understood", hint=", ".join(_STATE_BYTES))
    same_width = config.get("linear_value_head_dim") == config.get("linear_key_head_dim")
    if kind not in ("gemma3_text", "nemotron_h") and same_width:
        found["linear_value_head_dim"] = 0
    if kind != "gemma3_text":
        found["state_dtype_bytes"] = _STATE_BYTES[dtype]
    return {name: value for name, value in found.items() if value is not None}


def _llama_4(config: Mapping[str, Any]) -> dict[str, object]:
    """Layers without experts: all but each `interleave_moe_layer_step`-th."""
    step, layers = config.get("interleave_moe_layer_step", 1), config.get("num_hidden_layers")
    if not isinstance(step, int) or step < 1:
        raise InputError(f"config.json: interleave_moe_layer_step must be a whole number above 0, not {step!r}")
    dense = layers - layers // step if isinstance(layers, int) else 0
    return {"dense_layers": dense, "dense_intermediate": config.get("intermediate_size_mlp", 16384)} if dense else {}


def _shared(config: Mapping[str, Any]) -> int:
    """Shared experts, as so many of a routed expert's width."""
    width = config.get("shared_expert_intermediate_size", config.get("moe_shared_expert_intermediate_size"))
    routed = config.get("moe_intermediate_size")
    if width is None or not isinstance(routed, int) or routed < 1:
        return 1
    if not isinstance(width, int) or width % routed:
        what = f"the shared expert's width {width!r} is no multiple of moe_intermediate_size {routed}"
        raise InputError(f"config.json: {what}, which is not simulated")
    return width // routed * int(config.get("n_shared_experts") or 1)
