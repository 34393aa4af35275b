"""The scope of a profile: the kernels of one model's shapes and precisions, on one GPU, for one parallelism.

A profile says the dimensions that it was fitted for (`dimensions`), or names a built-in model, and the precision of
its kernels (`dtype`, `kv_dtype`). Anything else is refused in words: kernels of other shapes, of another precision or
of another GPU say nothing of those asked for, and a part that was not measured would cost nothing.
"""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from simulator.errors import InputError
from simulator.hardware.dimensions import CHANGED
from simulator.hardware.gpus import GPUS, Gpu
from simulator.hardware.layer_types import MAMBA
from simulator.hardware.models import MODELS, Model, custom_model
from simulator.hardware.precision import NVFP4_BYTES
from simulator.timing.profile.profile_schema import Profile

SHAPES = (
    "layers", "hidden", "intermediate", "heads", "kv_heads", "head_dim", "vocab", "experts", "active_experts",
    "shared_experts", "dense_layers", "dense_intermediate", "q_lora_rank", "kv_lora_rank", "rope_head_dim", "gated_mlp",
    "sliding_window", "full_attention_layers", "index_topk", "attention_gate", "linear_layers", "linear_key_heads",
    "linear_value_heads", "linear_head_dim", "qk_norm_whole",
)  # fmt: skip
"""The dimensions that decide what kernels compute."""
SHAPES_OF_STATES = ("layer_types", "linear_value_head_dim", "state_dtype_bytes")
"""Those that besides decide it where layers have a state of Mamba 2."""
PRICED = ("bandwidth_gb_s", "bf16_tflops")
"""The figures of a GPU that kernel times depend on: a profile is of their real values."""
_PLAIN = {1: "fp8", 2: "bf16", 4: "float32"}


def precision(model: Model) -> str:
    """The precision of a model's weights in the words of a profile's `dtype`; a sentence's part for any other."""
    if model.multiplied_in == "nvfp4" and model.dtype_bytes == NVFP4_BYTES:
        return "nvfp4"
    plain = _PLAIN.get(int(model.dtype_bytes) if model.dtype_bytes in _PLAIN else 0)
    if plain == "fp8" and model.multiplied_in == "fp8_block":
        return "fp8_block"
    if plain is not None and model.multiplied_in == ("fp8" if plain == "fp8" else "bf16"):
        return plain
    return f"{model.dtype_bytes:g}-byte weights multiplied in {model.multiplied_in}"


def expert_precision(model: Model) -> str:
    """The precision of a model's routed experts, in the words of `Model.expert_dtype`."""
    return precision(model) if model.expert_dtype == "auto" else model.expert_dtype


def kv_precision(model: Model) -> str:
    """The precision of a model's KV cache in the words of a profile's `kv_dtype`."""
    return _PLAIN[model.kv_dtype_bytes]


def described(model: Model) -> str:
    """A model with its precision, where that is not bf16."""
    parts = [precision(model)] if precision(model) != "bf16" else []
    parts += [f"{kv_precision(model)} KV"] if model.kv_dtype_bytes != 2 else []
    return f"{model.name} ({', '.join(parts)})" if parts else model.name


def shapes(model: Model) -> dict[str, Any]:
    """The dimensions as a profile keeps them: those that differ from a plain model's, and all that have no default."""
    plain = {"linear_head_dim"} if not model.has_states else set()
    names = (*SHAPES, *SHAPES_OF_STATES) if MAMBA in model.layer_types else SHAPES
    held = {name: value for name, value in asdict(model).items() if name in names and name not in plain}
    return {name: value for name, value in held.items() if value not in (0, False) or name == "gated_mlp"}


def refusal(profile: Profile, model: Model, gpu: Gpu, tensor_parallel: int) -> str | None:
    """Why the profile cannot price this; None where it can. What a profile leaves open (a log of steps) is not held."""
    document = profile.document
    of_gpu = gpu.name.removesuffix(CHANGED)
    for what, ours, theirs in (
        ("GPU", of_gpu, profile.gpu),
        ("tensor_parallel", str(tensor_parallel), str(profile.tensor_parallel)),
    ):
        if ours != theirs and theirs:
            return f"{profile.name} is a profile for {what} {theirs}; the scenario has {ours}"
    known = GPUS.get(of_gpu)
    if known is not None and profile.gpu:
        for name in PRICED:
            if getattr(gpu, name) != getattr(known, name):
                return (
                    f"{profile.name} was measured on a {of_gpu} of {name} {getattr(known, name):g}; the scenario's has"
                    f" {getattr(gpu, name):g}, which measured kernels do not follow"
                )
    return _of_model(profile, document, model)


def _of_model(profile: Profile, document: Mapping[str, Any], model: Model) -> str | None:
    fitted = _fitted(document)
    if fitted is None:
        if profile.model and profile.model != model.name:
            return f"{profile.name} is a profile for model {profile.model}; the scenario has {model.name}"
    else:
        names = (*SHAPES, *SHAPES_OF_STATES) if MAMBA in model.layer_types else SHAPES
        wrong = [name for name in names if getattr(fitted, name) != getattr(model, name)]
        if wrong:
            listed = ", ".join(
                f"{name} {getattr(model, name)} instead of {getattr(fitted, name)}" for name in wrong[:3]
            )
            of = f"model {profile.model}" if profile.model else "another model"
            return f"{profile.name} is a profile for {of}; the scenario has {model.name} ({listed})"
    dtype = document.get("dtype")
    for what, ours, theirs in (
        ("weights", precision(model), dtype),
        ("experts", expert_precision(model), document.get("expert_dtype", dtype) if model.experts else None),
        ("KV cache", kv_precision(model), document.get("kv_dtype", "bf16" if dtype else None)),
    ):
        if theirs is not None and ours != theirs:
            return f"{profile.name} was measured with {theirs} {what}; the scenario's {model.name} has {ours}"
    if "step" in profile.layer_curves:  # whole steps: all parts are in them
        return None
    if bool(model.experts) != (profile.experts is not None):
        has = f"has {model.experts} experts in a layer" if model.experts else "has none"
        kernels = "without experts" if model.experts else "with experts"
        return f"{profile.name} has kernels {kernels}, and {model.name} {has}"
    if model.kv_lora_rank and not document.get("latent"):
        return f"{profile.name} has no kernels of multi-head latent attention, which {model.name} needs"
    if profile.tensor_parallel > 1 and profile.all_reduce is None:
        return f"{profile.name} has no all-reduce, which tensor_parallel {profile.tensor_parallel} needs"
    return None


def _fitted(document: Mapping[str, Any]) -> Model | None:
    """The model that a profile was fitted for; None where it says neither dimensions nor a model that is known."""
    given = document.get("dimensions")
    if given is None:
        return MODELS.get(str(document.get("model", "")))
    try:
        return custom_model({**given, "max_model_len": 1})
    except InputError as error:
        raise InputError(f"the profile's dimensions: {error.message}", hint=error.hint) from None
