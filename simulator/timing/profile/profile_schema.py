"""Profiles as JSON: read, checked, held against the model that they are asked for, and turned into tables.

`calibration.fit` is the other direction.
"""

import gzip
import json
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from itertools import pairwise
from math import prod
from pathlib import Path
from typing import Any

from simulator.errors import InputError
from simulator.hardware.gpus import GPUS, Gpu
from simulator.hardware.model import MAMBA, NVFP4_BYTES
from simulator.hardware.models import MODELS, Model, custom_model
from simulator.parameters import CHANGED, check_choice
from simulator.timing.profile.kernels import (
    Attention,
    DecodeTable,
    Experts,
    JointTable,
    PrefillTable,
    RoutedExperts,
    Skew,
)
from simulator.timing.profile.surface import Curve, Physics, Sum, Surface, SurfaceAxis

# Files of kernel times: JSON, gzipped or not, with a schema and a version. An error says what is wrong with one.


@dataclass(frozen=True, slots=True)
class DocumentKind:
    """A kind of file: its schema and version, what it is called, and the command that writes it."""

    schema: str
    version: int
    called: str
    writer: str

    def read(self, path: Path) -> object:
        """The JSON of a file. InputError where it cannot be read, or is none."""
        try:
            data = path.read_bytes()
            return json.loads(gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data)
        except OSError as error:
            what = f"cannot read the {self.called.removeprefix('a ')}: {error.strerror or error}"
            raise InputError(what, file=str(path)) from None
        except (ValueError, EOFError, zlib.error) as error:
            raise InputError(f"not {self.called}: {error}", file=str(path)) from None

    @contextmanager
    def opened(self, document: object, file: str | None) -> Iterator[dict[str, Any]]:
        """The document, if it is of this schema and version. What is missing or damaged in it is an InputError."""
        if not isinstance(document, dict) or document.get("schema") != self.schema:
            what = f'not {self.called}: "schema" is not "{self.schema}"'
            raise InputError(what, file=file, hint=f"{self.writer} writes them")
        if document.get("version") != self.version:
            what = f"{self.called} of version {document.get('version')!r}; this batchlab reads version {self.version}"
            raise InputError(what, file=file, hint=f"make the file again from its source: {self.writer}")
        try:
            yield document
        except KeyError as error:
            raise InputError(f"{self.called} with no {error}", file=file) from None
        except (TypeError, ValueError, IndexError, AttributeError) as error:
            raise InputError(f"{self.called}, but damaged: {error}", file=file) from None


# Profiles as JSON: read, checked, and turned into tables. `calibration.fit` is the other direction.
#
# Version 1. Times in microseconds unless a name says otherwise; `layer` tables count once a layer, `step` tables
# once a step. Corrections are log(measured / physics) x 10^4, rounded.

SCHEMA = "batchlab profile"
VERSION = 1
KIND = DocumentKind(SCHEMA, VERSION, "a profile", "batchlab calibrate fit")
SCALE = 1e-4  # what a correction's integer stands for
Curves = Mapping[str, Curve]


@dataclass(frozen=True, slots=True)
class Profile:
    """A GPU, a model, a parallelism: their kernels. `document` is the JSON, with errors and sources."""

    name: str
    model: str
    gpu: str
    tensor_parallel: int
    layers: int
    host_s: float
    host_per_seq_s: float
    layer_curves: Curves
    step_curves: Curves
    row_curves: Curves
    attention: Attention
    skew: Skew | None
    experts: Experts | RoutedExperts | None
    all_reduce: Curve | None
    document: Mapping[str, Any]

    def covered(self) -> dict[str, int]:
        """The largest tokens of a step, decodes of a step and mean context that were measured."""
        seqs, context = self.attention.decode.surface.axes
        tokens = min(int(curve.counts[-1]) for curve in self.layer_curves.values())
        return {"tokens": tokens, "seqs": int(seqs.values[-1]), "context": int(context.values[-1])}


def read_profile(path: Path) -> Profile:
    """A profile from a file. InputError where it cannot be read, or is of another schema or version."""
    return load_profile(KIND.read(path), str(path))


def load_profile(document: object, file: str | None = None) -> Profile:
    """A profile from the parsed JSON; `file` is where errors say it came from."""
    with KIND.opened(document, file) as held:
        return _profile(held)


def _profile(document: dict[str, Any]) -> Profile:
    tables, attention, host = document["tables"], document["attention"], document["host"]
    reduce, experts, skew = document.get("all_reduce"), document.get("experts"), document.get("skew")
    return Profile(
        name=str(document["name"]),
        model=str(document["model"]),
        gpu=str(document["gpu"]),
        tensor_parallel=int(document["tensor_parallel"]),
        layers=_at_least_1(document["layers"], "layers"),
        host_s=_seconds(host["step_s"], "host.step_s"),
        host_per_seq_s=_seconds(host["seq_s"], "host.seq_s"),
        layer_curves={name: _curve(curve, name) for name, curve in tables["layer"].items()},
        step_curves={name: _curve(curve, name) for name, curve in tables["step"].items()},
        row_curves={name: _curve(curve, name) for name, curve in tables["rows"].items()},
        attention=_attention(attention),
        skew=None if skew is None else _skew(skew),
        experts=None if experts is None else _experts(experts),
        all_reduce=None if reduce is None else _curve(reduce["curve"], "all_reduce"),
        document=document,
    )


def _attention(document: dict[str, Any]) -> Attention:
    check_choice(document["prompts"], ("joint", "apart"), "attention.prompts")
    surface = _surface(document["prompt"], "attention.prompt")
    is_joint = document["prompts"] == "joint"
    prompt = JointTable(surface, float(document["knee_keys"])) if is_joint else PrefillTable(surface)
    decode = DecodeTable(_surface(document["decode"], "attention.decode"))
    launch_us = _seconds(document.get("launch_us", 0.0), "attention.launch_us")
    return Attention(decode, prompt, launch_us, _seconds(document.get("beside", 1.0), "attention.beside"))


def _experts(document: dict[str, Any]) -> Experts:
    count, top_k = _at_least_1(document["experts"], "experts"), _at_least_1(document["top_k"], "top_k")
    return Experts(_surface(document["surface"], "experts"), count, top_k)


def _skew(document: dict[str, Any]) -> Skew:
    axes = [read_axis(axis, "skew") for axis in document["axes"]]
    seqs, share, context = axes
    decode, mixed = _floats(document["decode"], "skew.decode"), _floats(document["mixed"], "skew.mixed")
    size = len(seqs.values) * len(share.values)
    if len(decode) != size or len(mixed) != size * len(context.values):
        raise ValueError("skew has tables that are not as large as its axes")
    return Skew(seqs, share, context, decode, mixed)


def _surface(document: dict[str, Any], name: str) -> Surface:
    axes = tuple(read_axis(axis, name) for axis in document["axes"])
    correction = tuple(value * SCALE for value in _floats(document["correction"], name))
    size = prod(len(axis.values) for axis in axes)
    if len(correction) != size:
        raise ValueError(f"{name} has {len(correction)} corrections for a grid of {size}")
    return Surface(axes, read_physics(document["physics"], name), correction)


def read_axis(document: dict[str, Any], name: str) -> SurfaceAxis:
    """An axis of `name` from JSON. ValueError, KeyError or TypeError where it is none."""
    values = _floats(document["values"], name)
    _check_ascending(values, f"an axis of {name}")
    return SurfaceAxis(str(document["name"]), values)


def _curve(document: dict[str, Any], name: str) -> Curve:
    counts, us = _floats(document["counts"], name), _floats(document["us"], name)
    _check_ascending(counts, f"the counts of {name}")
    if len(us) != len(counts):
        raise ValueError(f"{name} has {len(us)} times for {len(counts)} counts")
    if min(us) < 0:
        raise ValueError(f"{name} has a time below 0")
    return Curve(counts, us, _seconds(document["us_beyond"], name), _seconds(document.get("tile", 0), name))


def read_physics(document: dict[str, Any], name: str) -> Physics:
    """The physics of `name` from JSON. ValueError, KeyError or TypeError where it is none."""
    roofs = tuple(_sum(roof, name) for roof in document["roofs"])
    p = float(document["p"])
    if p < 1:
        raise ValueError(f"{name} has p = {p}, which is below 1")
    return Physics(_seconds(document["constant_us"], name), _sum(document["terms"], name), roofs, p)


def _sum(document: dict[str, float], name: str) -> Sum:
    return tuple((feature, _seconds(coefficient, f"{name}.{feature}")) for feature, coefficient in document.items())


def _floats(values: object, name: str) -> tuple[float, ...]:
    if not isinstance(values, list) or not values:
        raise ValueError(f"{name} has no list of numbers where one should be")
    return tuple(float(value) for value in values)


def _check_ascending(values: tuple[float, ...], what: str) -> None:
    if any(b <= a for a, b in pairwise(values)) or values[0] < 0:
        raise ValueError(f"{what} do not ascend from 0 or more")


def _seconds(value: object, name: str) -> float:
    number = float(value)  # type: ignore[arg-type] # a TypeError says that the profile is damaged
    if not 0 <= number < float("inf"):
        raise ValueError(f"{name} is {number}, not 0 or more")
    return number


def _at_least_1(value: object, name: str) -> int:
    if not isinstance(value, int) or value < 1:
        raise ValueError(f"{name} is {value!r}, not a count of at least 1")
    return value


# The scope of a profile: the kernels of one model's shapes and precisions, on one GPU, for one parallelism.
#
# A profile says the dimensions that it was fitted for (`dimensions`), or names a built-in model, and the precision
# of its kernels (`dtype`, `kv_dtype`). Anything else is refused in words: kernels of other shapes, of another
# precision or of another GPU say nothing of those asked for, and a part that was not measured would cost nothing.

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
