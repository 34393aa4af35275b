"""A model from its Hugging Face `config.json`: dimensions, kinds of layers, precision, and what rules a model out."""

import json
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from simulator.errors import InputError
from simulator.hardware.model import (
    CHUNK,
    DENSE,
    EXPERTS,
    FP8,
    FP8_BLOCK,
    FP8_CACHE,
    FULL,
    GATED_DELTA,
    MAMBA,
    NVFP4,
    WINDOW,
    from_words,
    repeated,
)
from simulator.hardware.models import MODELS, REQUIRED, Model, custom_model, find_model
from simulator.parameters import check_choice

# Where the config.json of a model with several kinds of layers says what they are.
#
# Names and defaults of fields are those of transformers' configuration classes; the state's precision is found
# where vLLM looks for it (model_executor/models/config.py of 0.33).

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


# The precision of a model's weights, products and KV cache from `quantization_config` of its config.json.
#
# What the files of the common quantisers look like, and what vLLM makes of them:
#
# - fp8 (`quant_method: fp8`): a scale for each matrix, or for each block with `weight_block_size`;
# - ModelOpt (`quant_method: modelopt`): `quant_algo` FP8 or NVFP4. A `kv_cache_scheme` or `kv_cache_quant_algo` of
# 8-bit floats makes the cache fp8 (`get_kv_cache_quant_algo_string` in vllm/utils/torch_utils.py);
# - compressed-tensors: `config_groups`, each with `weights` and `input_activations` of so many bits; floats of 8
# bits are fp8, of 4 bits with a scale for each 16 nvfp4. A `kv_cache_scheme` makes the cache fp8 (vLLM's Attention
# layer).
#
# Embeddings and head stay as wide as they were in all of them; here they count like the other weights, and the head
# is multiplied in bf16 all the same.
#
# Experts may be quantised alone: gpt-oss keeps attention, router and embeddings in bf16 beside experts in mxfp4,
# and so do files of ModelOpt (NVFP4) and compressed-tensors (int4) that leave out attention (`ignore`,
# `exclude_modules`). vLLM quantises nothing else of these either (vllm/model_executor/layers/quantization/mxfp4.py,
# 0.17.1).

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


# A model from its Hugging Face `config.json`: the fields that its dimensions follow from, and those that rule it
# out.
#
# Defaults of absent fields are those of transformers' configuration classes, which leave defaults out of the file.
# What would change parameters, KV bytes or attention in a way that `Model` cannot say is refused by the field's
# name; fields without such an influence are ignored.

MAX_BYTES = 2**20

_NAMES = {
    "layers": "num_hidden_layers",
    "hidden": "hidden_size",
    "intermediate": "intermediate_size",
    "heads": "num_attention_heads",
    "kv_heads": "num_key_value_heads",
    "head_dim": "head_dim",
    "vocab": "vocab_size",
    "max_model_len": "max_position_embeddings",
    "tie_embeddings": "tie_word_embeddings",
}
_GPT2_NAMES = {
    "layers": "n_layer",
    "hidden": "n_embd",
    "intermediate": "n_inner",
    "heads": "n_head",
    "vocab": "vocab_size",
    "max_model_len": "n_positions",
    "positions": "n_positions",
    "tie_embeddings": "tie_word_embeddings",
}
_DEEPSEEK = {
    "experts": "n_routed_experts",
    "active_experts": "num_experts_per_tok",
    "shared_experts": "n_shared_experts",
    "intermediate": "moe_intermediate_size",
    "dense_layers": "first_k_dense_replace",
    "dense_intermediate": "intermediate_size",
    "q_lora_rank": "q_lora_rank",
    "kv_lora_rank": "kv_lora_rank",
    "rope_head_dim": "qk_rope_head_dim",
    "head_dim": "qk_nope_head_dim",
    "num_nextn_predict_layers": "num_nextn_predict_layers",
    "v_head_dim": "v_head_dim",
}
_INDEXER = {"index_topk": "index_topk", "index_heads": "index_n_heads", "index_head_dim": "index_head_dim"}
_GLM = ("experts", "active_experts", "shared_experts", "intermediate", "dense_layers", "dense_intermediate",
        "num_nextn_predict_layers")  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Family:
    """One `model_type`: where its dimensions stand, what all of its models have, and what none may have.

    `only` are fields that must be absent or have this value. With a `pattern` it has layers of several kinds, these
    unless the file says others. `defaults` are those of fields that the file may leave out.
    """

    names: Mapping[str, str] = field(default_factory=lambda: _NAMES)
    constants: Mapping[str, object] = field(default_factory=dict)
    only: Mapping[str, object] = field(default_factory=dict)
    pattern: str = ""
    interval: str = ""
    defaults: Mapping[str, object] = field(default_factory=dict)


_FAMILIES: Mapping[str, _Family] = {
    "llama": _Family(only=_PLAIN),
    "mistral": _Family(),
    "mixtral": _Family({**_NAMES, "experts": "num_local_experts", "active_experts": "num_experts_per_tok"}),
    "qwen2": _Family(constants={"qkv_bias": True}),
    "qwen3": _Family(constants={"qk_norm": True}, only=_PLAIN),
    "qwen3_moe": _Family(
        {**_NAMES, **_EXPERTS}, {"qk_norm": True}, {**_PLAIN, "decoder_sparse_step": 1, "mlp_only_layers": []}
    ),
    "qwen3_vl_text": _Family(constants={"qk_norm": True}, only=_PLAIN),
    "qwen3_vl_moe_text": _Family(
        {**_NAMES, **_EXPERTS}, {"qk_norm": True}, {**_PLAIN, "decoder_sparse_step": 1, "mlp_only_layers": []}
    ),
    "minimax_m2": _Family(
        {**_NAMES, "experts": "num_local_experts", "active_experts": "num_experts_per_tok", "qk_norm": "use_qk_norm"},
        {"qk_norm_whole": True},
        {**_PLAIN, "qk_norm_type": "per_layer", "shared_intermediate_size": 0},
    ),
    "glm4_moe": _Family(
        {**_NAMES, **{name: _DEEPSEEK[name] for name in _GLM}, "qkv_bias": "attention_bias", "qk_norm": "use_qk_norm"}
    ),
    "phi3": _Family(only=_PLAIN),
    "gemma": _Family(constants={"tie_embeddings": True}, only=_PLAIN),
    "gpt2": _Family(
        _GPT2_NAMES,
        {"gated_mlp": False, "biases": True, "tie_embeddings": True},
        {"add_cross_attention": False, "scale_attn_by_inverse_layer_idx": False},
    ),
    "gpt_oss": _Family(
        {
            **_NAMES,
            "experts": "num_local_experts",
            "active_experts": "num_experts_per_tok",
            "sliding_window": "sliding_window",
        },
        {"qkv_bias": True},
        {"attention_bias": True},
        pattern="W*",
    ),
    "deepseek_v2": _Family({**_NAMES, **_DEEPSEEK}, {}, {**_PLAIN, "moe_layer_freq": 1}),
    "deepseek_v3": _Family({**_NAMES, **_DEEPSEEK}, {}, {**_PLAIN, "moe_layer_freq": 1}),
    "deepseek_v32": _Family({**_NAMES, **_DEEPSEEK, **_INDEXER}, {}, {**_PLAIN, "moe_layer_freq": 1}),
    "glm_moe_dsa": _Family(
        {**_NAMES, **_DEEPSEEK, **_INDEXER}, {}, {**_PLAIN, "moe_layer_freq": 1, "index_topk_freq": 1}
    ),
    "kimi_k2": _Family({**_NAMES, **_DEEPSEEK}, {}, {**_PLAIN, "moe_layer_freq": 1}),
    **{kind: _Family(**{**said, "names": {**_NAMES, **said["names"]}}) for kind, said in HYBRIDS.items()},
}
_REFUSED = {
    "text_config": "several modalities",
    "vision_config": "several modalities",
    "ssm_cfg": "state-space layers",
    "state_size": "state-space layers",
    "mamba_d_state": "state-space layers",
    "linear_value_heads": "linear attention",
    "is_encoder_decoder": "an encoder",
    "index_topk": "sparse attention",
}
"""Fields that say what `Model` cannot, whatever the family, and what they are signs of."""

_DTYPES = ("bfloat16", "float16", "float32")
_UNSCALED = ("default", "llama3", "longrope", "su")
_SCALED = ("linear", "dynamic", "yarn")


def named_model(name: str) -> Model:
    """A built-in model by its name, or that of a config.json by its path. InputError as below."""
    return read_model_config(Path(name)) if is_config(name) else find_model(name)


def is_config(name: str) -> bool:
    """Return whether a model is named by the path of a config.json."""
    return name.endswith(".json")


def read_model_config(path: Path) -> Model:
    """The model of a config.json, named after its folder; or, with all dimensions of a built-in one, as that.

    Profiles are found by the model's name, and depend on the dimensions alone. InputError, naming the field, for a file
    that cannot be read or describes what cannot be simulated.
    """
    try:
        with path.open("rb") as stream:
            data = json.loads(stream.read(MAX_BYTES))
            beside = path.with_name("hf_quant_config.json")
            if isinstance(data, dict) and not data.get("quantization_config") and beside.is_file():
                data["quantization_config"] = {"quant_method": "modelopt", **json.loads(beside.read_bytes())}
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror or error}") from None
    except (ValueError, RecursionError):
        raise InputError(f"{path} is not JSON", hint="a model's config.json, as on its page at Hugging Face") from None
    if not isinstance(data, dict):
        raise InputError(f"{path} is not a mapping", hint="a model's config.json, as on its page at Hugging Face")
    name = path.absolute().parent.name if path.name == "config.json" else path.stem
    return model_from_config(data, name or "custom")


def model_from_config(config: Mapping[str, Any], name: str) -> Model:
    """Read a model from the content of a config.json; of a hybrid one with images, its language model."""
    config = language_part(config)
    family = _family(config)
    config = {**family.defaults, **config}
    _refuse(config, family)
    values: dict[str, object] = {"name": name, **family.constants}
    for dimension, key in family.names.items():
        if config.get(key) is not None:
            values[dimension] = config[key]
    values |= _completed(config, family, values)
    try:
        model = custom_model(values)
    except InputError as error:
        raise InputError(f"config.json: {_renamed(error.message, family)}", hint=error.hint) from None
    known = next((known for known in MODELS.values() if _is_like(known, model)), None)
    return model if known is None else replace(model, name=known.name)


def _family(config: Mapping[str, Any]) -> _Family:
    kind = config.get("model_type")
    if not isinstance(kind, str):
        raise InputError("config.json: no model_type", hint=f"understood: {', '.join(_FAMILIES)}")
    for key, sign in _REFUSED.items():
        named = kind in _FAMILIES and key in _FAMILIES[kind].names.values()
        if config.get(key) and not named and not (kind in HYBRIDS and sign == "linear attention"):
            hint = _language_model(config) if sign == "several modalities" else None
            raise InputError(f"config.json: {key} means {sign}, which is not simulated", hint=hint)
    try:
        return _FAMILIES[check_choice(kind, _FAMILIES, "model_type")]
    except InputError as error:
        hint = f"{error.hint}; any other: a mapping of dimensions, `model: {{layers: ..., hidden: ...}}`"
        raise InputError(f"config.json: {error.message}", hint=hint) from None


def _language_model(config: Mapping[str, Any]) -> str:
    """Advice that works for a model of several modalities: the file, or else the mapping, of its language model."""
    inner = config.get("text_config")
    own = inner if isinstance(inner, dict) else {key: config[key] for key in config if key not in _REFUSED}
    with suppress(InputError):
        model_from_config(own, "language model")
        if own is inner:
            return "save what stands under text_config as a file of its own, NAME.json, and give its path"
    found = {name: own[key] for name, key in _NAMES.items() if name in REQUIRED and own.get(key) is not None}
    given = ", ".join(f"{name}: {found.get(name, '...')}" for name in REQUIRED)
    windows = "; sliding_window and full_attention_layers too" if own.get("sliding_window") else ""
    return f"give the language model's dimensions as a mapping, `model: {{{given}}}`{windows}"


def _refuse(config: Mapping[str, Any], family: _Family) -> None:
    """Raise InputError for a field that asks for something beyond `Model`."""
    for key, only in family.only.items():
        if config.get(key) not in (None, only):
            raise InputError(f"config.json: {key} {config[key]!r} is not understood", hint=f"allowed: {only!r}")
    dtype = config.get("torch_dtype", config.get("dtype"))
    if dtype is not None and dtype not in _DTYPES:
        raise InputError(f"config.json: torch_dtype {dtype!r} is not understood", hint=f"allowed: {', '.join(_DTYPES)}")
    if family.pattern:
        return
    window, longest = config.get("sliding_window"), config.get("max_position_embeddings")
    if window is not None and config.get("use_sliding_window", True) and not _covers(window, longest):
        raise InputError(
            f"config.json: sliding_window {window!r} is not read: every request would attend to all of its context",
            hint="for contexts within the window, set max_position_embeddings to it; to price it, give the dimensions"
            " as a mapping with sliding_window; else set sliding_window to null",
        )
    for kind in config.get("layer_types") or ():
        if kind != "full_attention":
            raise InputError(f"config.json: layer_types has {kind!r}, which is not simulated", hint="full_attention")


def _covers(window: object, longest: object) -> bool:
    return isinstance(window, int) and isinstance(longest, int) and window >= longest


def _completed(config: Mapping[str, Any], family: _Family, values: Mapping[str, object]) -> dict[str, object]:
    """Dimensions that follow from others, and the widths of numbers."""
    apart = experts_apart(config) if values.get("experts") else None
    found = {**PLAIN, **apart} if apart else precision_of(config)
    if family.pattern:
        found |= _kinds(config, family, values.get("layers"))
    heads, hidden = values.get("heads"), values.get("hidden")
    if "kv_heads" not in values and heads is not None:
        found["kv_heads"] = heads
    if family.names is _GPT2_NAMES and "intermediate" not in values and isinstance(hidden, int):
        found["intermediate"] = 4 * hidden
    if values.get("kv_lora_rank"):
        found["kv_heads"] = heads
        if values.get("v_head_dim") == values.get("head_dim"):
            found["v_head_dim"] = 0
        if not values.get("dense_layers"):
            found |= {"dense_layers": 0, "dense_intermediate": 0}
    longest = values.get("max_model_len")
    if isinstance(longest, int):
        # Gemma 3 states the context after its scaling, as vLLM knows (config/model.py, `_get_and_verify_max_len`).
        found["max_model_len"] = longest if config["model_type"] == "gemma3_text" else _longest(config, longest)
    return found


def _kinds(config: Mapping[str, Any], family: _Family, layers: object) -> dict[str, object]:
    """The kinds of layers; where the file does not say, those that transformers' class has."""
    pattern = kinds_of_layers(config, family.pattern, family.interval)
    found: dict[str, object] = {"layer_types": pattern}
    if isinstance(layers, int) and layers > 0:
        letters = repeated(pattern, layers)
        if WINDOW in letters:
            found["full_attention_layers"] = letters.count(FULL)
        if GATED_DELTA in letters:
            found["linear_layers"] = letters.count(GATED_DELTA)
    kind = config["model_type"]
    return found | (hybrid_fields(config, kind, pattern) if kind in HYBRIDS else {})


def _longest(config: Mapping[str, Any], longest: int) -> int:
    """The longest context as vLLM derives it: positions, stretched by the rope scaling where that says so."""
    scaling = config.get("rope_scaling") or config.get("rope_parameters") or {}
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    if kind in _UNSCALED:
        return longest
    factor = scaling.get("factor")
    if kind not in _SCALED or not isinstance(factor, (int, float)) or factor < 1:
        raise InputError(
            f"config.json: rope_scaling {kind!r} is not understood",
            hint=f"allowed: {', '.join((*_UNSCALED, *_SCALED))}",
        )
    original = scaling.get("original_max_position_embeddings", longest) if kind == "yarn" else longest
    return int(original * factor)


def _renamed(message: str, family: _Family) -> str:
    """An error about dimensions in the file's own words."""
    return re.sub(r"\w+", lambda word: family.names.get(word[0], word[0]), message.removeprefix("model: "))


def _is_like(known: Model, model: Model) -> bool:
    may_differ = ("name", "max_model_len", "num_nextn_predict_layers")
    return replace(known, **{name: getattr(model, name) for name in may_differ}) == model
