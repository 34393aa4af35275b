"""What each layer of a model keeps of a request, and whether its kinds of layers go with its other dimensions."""

from collections import Counter

from simulator.errors import InputError
from simulator.hardware.kv_groups import LayerCache
from simulator.hardware.layer_types import (
    ATTENTION,
    CHUNK,
    DENSE,
    EXPERTS,
    FULL,
    GATED_DELTA,
    MAMBA,
    STATES,
    WINDOW,
    WORDS,
)
from simulator.hardware.model import Model

_ANY_TOKEN = 1  # a state of Mamba 2 can be saved at any token (mamba_mixer2.py:1109)


def state_bytes(model: Model, tensor_parallel: int) -> int:
    """Bytes of one layer's state on each GPU: the inputs of its convolution, and a matrix for each head.

    vLLM's `gated_delta_net_state_shape` and `mamba2_state_shape` (model_executor/layers/mamba/mamba_utils.py of 0.33).
    """
    keys, values = model.linear_key_heads, model.linear_value_heads
    if values % tensor_parallel:
        raise InputError(
            f"tensor_parallel {tensor_parallel} does not divide the {values} heads of {model.name}'s linear attention"
        )
    if keys % tensor_parallel:
        keys = tensor_parallel  # a group of keys for each GPU
    channels = (2 * keys * model.linear_head_dim + values * model.value_head_dim) // tensor_parallel
    matrix = values // tensor_parallel * model.value_head_dim * model.linear_head_dim
    return (model.linear_conv_kernel_dim - 1) * channels * 2 + matrix * model.state_dtype_bytes


def layer_caches(model: Model, tensor_parallel: int) -> list[LayerCache | None]:
    """What each layer keeps on each GPU; None for layers that keep nothing. Block sizes are the server's (0)."""
    latent = model.kv_lora_rank + model.rope_head_dim
    heads = 1 if model.kv_lora_rank else model.local_kv_heads(tensor_parallel)
    width = (latent if model.kv_lora_rank else 2 * model.head_dim) * model.kv_dtype_bytes + model.index_bytes_per_token
    state = state_bytes(model, tensor_parallel) if model.has_states else 0
    kept: dict[str, LayerCache | None] = {
        FULL: LayerCache("full", 0, heads, width),
        WINDOW: LayerCache("window", 0, heads, width, window=model.sliding_window),
        CHUNK: LayerCache("chunked", 0, heads, width, chunk=model.attention_chunk_size),
        GATED_DELTA: LayerCache("mamba", 0, state_bytes=state),
        MAMBA: LayerCache("mamba", 0, state_bytes=state, checkpoint=_ANY_TOKEN),
        DENSE: None,
        EXPERTS: None,
    }
    return [kept[letter] for letter in model.kinds_of_layers]


def check_layer_types(model: Model) -> None:
    """Raise InputError unless the kinds of layers go with the model's other dimensions."""
    unknown = sorted(set(model.layer_types) - set(WORDS))
    known = ", ".join(f"{letter} {word}" for letter, word in WORDS.items())
    if unknown:
        raise InputError(f"model: layer_types has {unknown[0]!r}", hint=f"allowed: {known}")
    found = Counter(model.kinds_of_layers)
    needed = {
        WINDOW: "sliding_window",
        CHUNK: "attention_chunk_size",
        **dict.fromkeys(STATES, "linear_value_heads"),
    }
    for letter, key in needed.items():
        if found[letter] and not getattr(model, key):
            raise InputError(f"model: layers of the kind {letter} ({WORDS[letter]}) need {key}")
    if model.layer_types:
        for letter, key in {WINDOW: "sliding_window", CHUNK: "attention_chunk_size"}.items():
            if getattr(model, key) and not found[letter]:
                raise InputError(f"model: {key} without a layer that has it", hint=f"{letter} in layer_types")
        if model.full_attention_layers not in (0, found[FULL]):
            what = f"full_attention_layers is {model.full_attention_layers}, layer_types has {found[FULL]}"
            raise InputError(f"model: {what}", hint="leave full_attention_layers out")
        if model.linear_layers != found[GATED_DELTA]:
            what = f"linear_layers is {model.linear_layers}, layer_types has {found[GATED_DELTA]} of the kind G"
            raise InputError(f"model: {what}")
        if not any(found[letter] for letter in ATTENTION):
            raise InputError("model: layer_types has no layer with attention", hint=f"allowed: {known}")
    if model.has_states:
        for key in ("linear_key_heads", "linear_head_dim", "linear_conv_kernel_dim"):
            if getattr(model, key) < 1:
                raise InputError(f"model: layers with a state need {key}")
        if model.state_dtype_bytes not in (1, 2, 4):
            raise InputError(f"model: state_dtype_bytes must be 1, 2 (bf16) or 4 (fp32), not {model.state_dtype_bytes}")
