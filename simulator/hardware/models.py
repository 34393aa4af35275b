"""The built-in models, models from a user's mapping of dimensions, and the names under which they are published."""

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from simulator.errors import InputError
from simulator.hardware.kv_groups import check_layer_types
from simulator.hardware.model import BF16, EXPERT_BYTES, FP8, FP8_BLOCK, NVFP4, PRECISION_WORDS, Model, spelled_out
from simulator.parameters import check_choice, fields_from

# Names under which models are published: without owner, variant and precision, and what a precision in a name
# means.
#
# Qwen, DeepSeek and MiniMax publish their fp8 weights with a scale for each block of 128 x 128, as the
# `weight_block_size` of their config.json says, and GLM-5's are taken to be so; those of GLM-4.5, NVIDIA's and
# others' have one for each matrix or row.

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


# The built-in models, and models from a user's mapping of dimensions.
#
# Dimensions are those of each model's published `config.json`. The derived parameter counts are tested against
# those that the makers state.

__all__ = [
    "EXPERT_BYTES", "HUGGING_FACE", "MODELS", "REQUIRED", "SAME_DIMENSIONS", "Model", "custom_model",
    "find_model", "model_of",
]  # fmt: skip

# Each model under its Hugging Face name, with the dimensions of the config.json there. `max_model_len` is
# its max_position_embeddings: Llama 3.1 128 Ki, Mistral 7B v0.2 (v0.1 has a sliding window) and Mixtral 32 Ki,
# Qwen2.5-Instruct 32 Ki without YaRN, Qwen3 40 Ki without YaRN, Llama 2 4 Ki, GPT-2 1 Ki.
_LLAMA_3_VOCAB = 128256
_QWEN_3_VOCAB = 151936
_LATENT: Mapping[str, Any] = {"kv_lora_rank": 512, "rope_head_dim": 64}
_GATED_DELTA_NET: Mapping[str, Any] = {
    "linear_key_heads": 16, "linear_value_heads": 32,
}  # fmt: skip
_TABLE: Mapping[str, Model] = {
    "meta-llama/Llama-2-7b-chat-hf":
        Model("llama-2-7b", 32, 4096, 11008, 32, 32, 128, 32000, 4096),
    "meta-llama/Llama-2-70b-chat-hf":
        Model("llama-2-70b", 80, 8192, 28672, 64, 8, 128, 32000, 4096),
    "meta-llama/Llama-3.1-8B-Instruct":
        Model("llama-3.1-8b", 32, 4096, 14336, 32, 8, 128, _LLAMA_3_VOCAB, 131072),
    "meta-llama/Llama-3.1-70B-Instruct":
        Model("llama-3.1-70b", 80, 8192, 28672, 64, 8, 128, _LLAMA_3_VOCAB, 131072),
    "meta-llama/Llama-3.1-405B-Instruct":
        Model("llama-3.1-405b", 126, 16384, 53248, 128, 8, 128, _LLAMA_3_VOCAB, 131072),
    "mistralai/Mistral-7B-Instruct-v0.2":
        Model("mistral-7b", 32, 4096, 14336, 32, 8, 128, 32000, 32768),
    "mistralai/Mistral-Small-24B-Instruct-2501":
        Model("mistral-small-24b", 40, 5120, 32768, 32, 8, 128, 131072, 32768),
    "mistralai/Mixtral-8x7B-Instruct-v0.1":
        Model("mixtral-8x7b", 32, 4096, 14336, 32, 8, 128, 32000, 32768, experts=8, active_experts=2),
    "mistralai/Mixtral-8x22B-Instruct-v0.1":
        Model("mixtral-8x22b", 56, 6144, 16384, 48, 8, 128, 32768, 65536, experts=8, active_experts=2),
    "Qwen/Qwen2.5-7B-Instruct":
        Model("qwen2.5-7b", 28, 3584, 18944, 28, 4, 128, 152064, 32768, qkv_bias=True),
    "Qwen/Qwen2.5-72B-Instruct":
        Model("qwen2.5-72b", 80, 8192, 29568, 64, 8, 128, 152064, 32768, qkv_bias=True),
    "Qwen/Qwen3-0.6B":
        Model("qwen3-0.6b", 28, 1024, 3072, 16, 8, 128, _QWEN_3_VOCAB, 40960, tie_embeddings=True, qk_norm=True),
    "Qwen/Qwen3-8B":
        Model("qwen3-8b", 36, 4096, 12288, 32, 8, 128, _QWEN_3_VOCAB, 40960, qk_norm=True),
    "Qwen/Qwen3-14B":
        Model("qwen3-14b", 40, 5120, 17408, 40, 8, 128, _QWEN_3_VOCAB, 40960, qk_norm=True),
    "Qwen/Qwen3-32B":
        Model("qwen3-32b", 64, 5120, 25600, 64, 8, 128, _QWEN_3_VOCAB, 40960, qk_norm=True),
    "Qwen/Qwen3-30B-A3B": Model(
        "qwen3-30b-a3b", 48, 2048, 768, 32, 4, 128, _QWEN_3_VOCAB, 40960,
        experts=128, active_experts=8, qk_norm=True,
    ),
    "Qwen/Qwen3-235B-A22B": Model(
        "qwen3-235b-a22b", 94, 4096, 1536, 64, 4, 128, _QWEN_3_VOCAB, 40960,
        experts=128, active_experts=8, qk_norm=True,
    ),
    "Qwen/Qwen3-Coder-480B-A35B-Instruct": Model(
        "qwen3-coder-480b-a35b", 62, 6144, 2560, 96, 8, 128, _QWEN_3_VOCAB, 262144,
        experts=160, active_experts=8, qk_norm=True,
    ),
    # Of Llama 4 the language model alone. Every other layer of Maverick has experts: which ones matters to the stages
    # of a pipeline alone, and there the plain layers come first.
    "meta-llama/Llama-4-Scout-17B-16E-Instruct": Model(
        "llama-4-scout", 48, 5120, 8192, 40, 8, 128, 202048, 10485760, experts=16, active_experts=1, shared_experts=1,
        layer_types="CCC*", attention_chunk_size=8192,
    ),
    "meta-llama/Llama-4-Maverick-17B-128E-Instruct": Model(
        "llama-4-maverick", 48, 5120, 8192, 40, 8, 128, 202048, 1048576, experts=128, active_experts=1,
        shared_experts=1, dense_layers=24, dense_intermediate=16384, layer_types="CCC*", attention_chunk_size=8192,
    ),
    # GLM-4.5 and MiniMax-M2 without the layers for multi-token prediction; the biases of the router are not counted.
    "zai-org/GLM-4.5": Model(
        "glm-4.5", 92, 5120, 1536, 96, 8, 128, 151552, 131072, experts=160, active_experts=8, shared_experts=1,
        dense_layers=3, dense_intermediate=12288, qkv_bias=True, qk_norm=True, num_nextn_predict_layers=1,
    ),
    "zai-org/GLM-4.5-Air": Model(
        "glm-4.5-air", 46, 4096, 1408, 96, 8, 128, 151552, 131072, experts=128, active_experts=8, shared_experts=1,
        dense_layers=1, dense_intermediate=10944, qkv_bias=True, num_nextn_predict_layers=1,
    ),
    "MiniMaxAI/MiniMax-M2": Model(
        "minimax-m2", 62, 3072, 1536, 48, 8, 128, 200064, 196608, experts=256, active_experts=8, qk_norm=True,
        qk_norm_whole=True, **FP8_BLOCK,
    ),
    # Biases of the output projection, the router and the experts, and the sinks, are not counted: 0.04 %.
    "openai/gpt-oss-20b": Model(
        "gpt-oss-20b", 24, 2880, 2880, 64, 8, 64, 201088, 131072, experts=32, active_experts=4, qkv_bias=True,
        sliding_window=128, full_attention_layers=12, expert_dtype="mxfp4", layer_types="W*",
    ),
    "openai/gpt-oss-120b": Model(
        "gpt-oss-120b", 36, 2880, 2880, 64, 8, 64, 201088, 131072, experts=128, active_experts=4, qkv_bias=True,
        sliding_window=128, full_attention_layers=18, expert_dtype="mxfp4", layer_types="W*",
    ),
    # The language model alone, without what reads images; of its four norms a layer two are counted.
    "google/gemma-3-27b-it": Model(
        "gemma-3-27b", 62, 5376, 21504, 32, 16, 128, 262208, 131072, tie_embeddings=True, qk_norm=True,
        sliding_window=1024, full_attention_layers=10, layer_types="WWWWW*",
    ),
    # Without the layers for multi-token prediction and the shared expert's gate. The state's precision is what the
    # config.json says to vLLM: float32 in Qwen3.5 and Nemotron-H, the model's own in Qwen3-Next.
    "Qwen/Qwen3-Next-80B-A3B-Instruct": Model(
        "qwen3-next-80b-a3b", 48, 2048, 512, 16, 2, 256, _QWEN_3_VOCAB, 262144, experts=512, active_experts=10,
        shared_experts=1, qk_norm=True, layer_types="GGG*", linear_layers=36, attention_gate=True, **_GATED_DELTA_NET,
    ),
    "Qwen/Qwen3.5-35B-A3B": Model(
        "qwen3.5-35b-a3b", 40, 2048, 512, 16, 2, 256, 248320, 262144, experts=256, active_experts=8,
        shared_experts=1, qk_norm=True, layer_types="GGG*", linear_layers=30, attention_gate=True, state_dtype_bytes=4,
        **_GATED_DELTA_NET,
    ),
    "Qwen/Qwen3.5-397B-A17B": Model(
        "qwen3.5-397b-a17b", 60, 4096, 1024, 32, 2, 256, 248320, 262144, experts=512, active_experts=10,
        shared_experts=1, qk_norm=True, layer_types="GGG*", linear_layers=45, attention_gate=True, state_dtype_bytes=4,
        linear_key_heads=16, linear_value_heads=64,
    ),
    "nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16": Model(
        "nemotron-3-nano-30b-a3b", 52, 2688, 1856, 32, 2, 128, 131072, 262144, experts=128, active_experts=6,
        shared_experts=2, gated_mlp=False, state_dtype_bytes=4,
        layer_types="MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME", linear_key_heads=8, linear_value_heads=64,
        linear_head_dim=128, linear_value_head_dim=64,
    ),
    "nvidia/NVIDIA-Nemotron-Nano-9B-v2": Model(
        "nemotron-nano-9b-v2", 56, 4480, 15680, 40, 8, 128, 131072, 131072, gated_mlp=False, state_dtype_bytes=4,
        layer_types="M-M-M-MM-M-M-M*-M-M-M*-M-M-M-M*-M-M-M-M*-M-MM-M-M-M-M-M-", linear_key_heads=8,
        linear_value_heads=128, linear_head_dim=128, linear_value_head_dim=80,
    ),
    "openai-community/gpt2": Model(
        "gpt2", 12, 768, 3072, 12, 12, 64, 50257, 1024,
        tie_embeddings=True, gated_mlp=False, biases=True, positions=1024,
    ),
    # In the precision in which they are published, without the layers for multi-token prediction. DeepSeek-R1 has all
    # dimensions of DeepSeek-V3.
    "deepseek-ai/DeepSeek-V3": Model(
        "deepseek-v3", 61, 7168, 2048, 128, 128, 128, 129280, 163840, experts=256, active_experts=8, shared_experts=1,
        dense_layers=3, dense_intermediate=18432, q_lora_rank=1536, **_LATENT, **FP8_BLOCK,
        num_nextn_predict_layers=1,
    ),
    "moonshotai/Kimi-K2-Instruct": Model(
        "kimi-k2", 61, 7168, 2048, 64, 64, 128, 163840, 131072, experts=384, active_experts=8, shared_experts=1,
        dense_layers=1, dense_intermediate=18432, q_lora_rank=1536, **_LATENT, **FP8_BLOCK,
    ),
    # Its experts alone are in int4, with a scale for each 32 weights.
    "moonshotai/Kimi-K2-Thinking": Model(
        "kimi-k2-thinking", 61, 7168, 2048, 64, 64, 128, 163840, 262144, experts=384, active_experts=8,
        shared_experts=1, dense_layers=1, dense_intermediate=18432, q_lora_rank=1536, **_LATENT, expert_dtype="int4",
        expert_group_size=32,
    ),
    "deepseek-ai/DeepSeek-V3.2": Model(
        "deepseek-v3.2", 61, 7168, 2048, 128, 128, 128, 129280, 163840, experts=256, active_experts=8,
        shared_experts=1, dense_layers=3, dense_intermediate=18432, q_lora_rank=1536, **_LATENT, **FP8_BLOCK,
        index_topk=2048, num_nextn_predict_layers=1,
    ),
    "zai-org/GLM-5": Model(
        "glm-5", 78, 6144, 2048, 64, 64, 192, 154880, 202752, experts=256, active_experts=8, shared_experts=1,
        dense_layers=3, dense_intermediate=12288, q_lora_rank=2048, **_LATENT, v_head_dim=256, index_topk=2048,
        index_heads=32, num_nextn_predict_layers=1,
    ),
    "deepseek-ai/DeepSeek-V2-Chat": Model(
        "deepseek-v2", 60, 5120, 1536, 128, 128, 128, 102400, 163840, experts=160, active_experts=6, shared_experts=2,
        dense_layers=1, dense_intermediate=12288, q_lora_rank=1536, **_LATENT,
    ),
    "deepseek-ai/DeepSeek-V2-Lite-Chat": Model(
        "deepseek-v2-lite", 27, 2048, 1408, 16, 16, 128, 102400, 163840, experts=64, active_experts=6,
        shared_experts=2, dense_layers=1, dense_intermediate=10944, **_LATENT,
    ),
}  # fmt: skip

MODELS: dict[str, Model] = {model.name: model for model in _TABLE.values()}
"""The built-in models by name, in the order in which they are listed."""
HUGGING_FACE: Mapping[str, str] = {model.name: name for name, model in _TABLE.items()}
"""The Hugging Face name of each built-in model, which servers take."""

SAME_DIMENSIONS: Mapping[str, str] = {
    "meta-llama/Llama-3.3-70B-Instruct": "llama-3.1-70b", "meta-llama/Meta-Llama-3-8B-Instruct": "llama-3.1-8b",
    "meta-llama/Meta-Llama-3-70B-Instruct": "llama-3.1-70b", "deepseek-ai/DeepSeek-R1": "deepseek-v3",
    "deepseek-ai/DeepSeek-V3.1": "deepseek-v3", "moonshotai/Kimi-K2.5": "kimi-k2-thinking",
    "MiniMaxAI/MiniMax-M2.5": "minimax-m2", "MiniMaxAI/MiniMax-M2.7": "minimax-m2", "zai-org/GLM-4.6": "glm-4.5",
    "mistralai/Mistral-7B-Instruct-v0.3": "mistral-7b", "Qwen/Qwen3-Coder-30B-A3B-Instruct": "qwen3-30b-a3b",
}  # fmt: skip
"""Other models with the dimensions of a built-in one: by their config.json they differ in weights and context alone."""
_BARE: Mapping[str, str] = {
    **{bare_name(name): own for name, own in SAME_DIMENSIONS.items()},
    **{bare_name(name): own for own, name in HUGGING_FACE.items()},
    **{own: own for own in MODELS},
}


FEWEST_WEIGHT_BYTES = 0.1  # weights of a bit have 0.125 bytes

REQUIRED = ("layers", "hidden", "intermediate", "heads", "kv_heads", "vocab", "max_model_len")
"""The dimensions that a mapping without a `base` must give."""


def find_model(name: str) -> Model:
    """The built-in model of that name, or of the name under which it is published; InputError with the nearest names.

    A precision in a published name ("nvidia/Llama-3.3-70B-Instruct-FP8") is the model's.
    """
    if name in MODELS or (own := built_in_of(name)) is None:
        return MODELS[check_choice(name, MODELS, "model")]
    fields = published_fields(own, name)
    return replace(MODELS[own], **fields) if fields else MODELS[own]


def model_of(given: str | Mapping[str, object]) -> Model:
    """The model of a scenario: `find_model` of a name, `custom_model` of a mapping."""
    return find_model(given) if isinstance(given, str) else custom_model(given)


def built_in_of(name: str) -> str | None:
    """The built-in model with the dimensions of a published one; None where there is none."""
    bare = bare_name(name)
    found = _BARE.get(bare)
    return _BARE.get(without_reasoning(bare)) if found is None else found


def published_fields(own: str, name: str) -> Mapping[str, Any]:
    """The fields of `Model` in which a published one differs from the built-in one of its dimensions: its precision's.

    No field where the built-in model is published in that precision anyway.
    """
    model = MODELS[own]
    if precision_in(name).startswith("fp8") and model.dtype_bytes == 1:
        return {}
    fields = fields_in(name, latent=model.kv_lora_rank > 0)
    return {} if all(getattr(model, key) == value for key, value in fields.items()) else fields


def custom_model(mapping: Mapping[str, object]) -> Model:
    """A model from a mapping of dimensions (the YAML's `model: {...}`), keyed like the fields of `Model`.

    With `base: NAME` the built-in model of that name gives every dimension that the mapping leaves out. Without it
    those of `REQUIRED` must be there; `head_dim` is hidden / heads unless given. `quantization` and `kv_cache_dtype`
    say precisions in a word (`PRECISION_WORDS`). InputError on unknown, missing, mistyped or contradictory values.
    """
    mapping = spelled_out(mapping)
    defaults: dict[str, object] = {"name": "custom"}
    hidden, heads = mapping.get("hidden"), mapping.get("heads")
    if isinstance(hidden, int) and isinstance(heads, int) and heads > 0 and hidden % heads == 0:
        defaults["head_dim"] = hidden // heads
    model = fields_from(Model, mapping, defaults, find_model, "model", PRECISION_WORDS)
    _check(model)
    return model


def _check(model: Model) -> None:
    positive = ("layers", "hidden", "intermediate", "heads", "kv_heads", "head_dim", "vocab", "max_model_len")
    for field in (*positive, "kv_dtype_bytes"):
        if getattr(model, field) < 1:
            raise InputError(f"model: {field} must be at least 1, not {getattr(model, field)}")
    for field in Model.__slots__:
        value = getattr(model, field)
        if isinstance(value, int) and value < 0:
            raise InputError(f"model: {field} must not be negative, but is {value}")
    if model.kv_dtype_bytes not in (1, 2, 4):
        raise InputError(f"model: kv_dtype_bytes must be 1 (fp8), 2 (bf16) or 4 (fp32), not {model.kv_dtype_bytes}")
    if not (FEWEST_WEIGHT_BYTES <= model.dtype_bytes <= 2 or model.dtype_bytes == 4):
        raise InputError(
            f"model: dtype_bytes must be 1 (fp8), 2 (bf16), 4 (fp32) or a fraction of at least {FEWEST_WEIGHT_BYTES}"
            f" and below 2 (quantised, scales included), not {model.dtype_bytes:g}"
        )
    if model.heads % model.kv_heads:
        raise InputError(f"model: kv_heads ({model.kv_heads}) must divide heads ({model.heads})")
    if model.experts and not 1 <= model.active_experts <= model.experts:
        raise InputError(f"model: active_experts must be 1 to {model.experts} (experts), not {model.active_experts}")
    if not model.experts and model.expert_dtype != "auto":
        raise InputError("model: expert_dtype needs experts")
    if not model.experts and (model.active_experts or model.shared_experts or model.dense_layers):
        raise InputError("model: active_experts, shared_experts and dense_layers need experts")
    if model.full_attention_layers and not model.sliding_window:
        raise InputError("model: full_attention_layers needs sliding_window, which the other layers have")
    has_heads = bool(model.linear_key_heads and model.linear_value_heads)
    if not model.layer_types and bool(model.linear_layers) != has_heads:
        raise InputError("model: linear_layers, linear_key_heads and linear_value_heads come together")
    if model.linear_layers >= model.layers or (model.linear_layers and (model.sliding_window or model.kv_lora_rank)):
        what = f"model: linear_layers ({model.linear_layers}) must be below layers ({model.layers})"
        raise InputError(f"{what}, and beside them is plain attention, without a window")
    check_layer_types(model)
    if model.full_attention_layers > model.layers:
        raise InputError(
            f"model: full_attention_layers ({model.full_attention_layers}) is more than layers ({model.layers})"
        )
    if model.dense_layers > model.layers:
        raise InputError(f"model: dense_layers ({model.dense_layers}) is more than layers ({model.layers})")
    if bool(model.dense_layers) != bool(model.dense_intermediate):
        raise InputError("model: dense_layers and dense_intermediate come together")
    if (model.q_lora_rank or model.rope_head_dim) and not model.kv_lora_rank:
        raise InputError("model: q_lora_rank and rope_head_dim need kv_lora_rank (multi-head latent attention)")
