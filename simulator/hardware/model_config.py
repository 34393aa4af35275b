"""A model from its Hugging Face `config.json`: the fields that its dimensions follow from, and those that rule it out.

Defaults of absent fields are those of transformers' configuration classes, which leave defaults out of the file. What
would change parameters, KV bytes or attention in a way that `Model` cannot say is refused by the field's name; fields
without such an influence are ignored.
"""

import json
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from simulator.errors import InputError
from simulator.hardware.dimensions import check_choice
from simulator.hardware.hybrid_configs import HYBRIDS, hybrid_fields, kinds_of_layers, language_part
from simulator.hardware.layer_types import FULL, GATED_DELTA, WINDOW, repeated
from simulator.hardware.models import MODELS, REQUIRED, Model, custom_model, find_model
from simulator.hardware.quantization import PLAIN, experts_apart, precision_of

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
_EXPERTS = {"experts": "num_experts", "active_experts": "num_experts_per_tok", "intermediate": "moe_intermediate_size"}
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


_PLAIN = {"attention_bias": False, "mlp_bias": False}
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
