"""A model's weights, or random ones for its shapes; and numbers of eight bits, in which weights and KV can be kept."""

from __future__ import annotations

import json
import math
import mmap
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn.functional import linear

from gpu_backend.work import UNSCALED, KVScales
from simulator.errors import InputError
from simulator.hardware.models import Model

# Numbers of eight bits, e4m3 (Micikevicius et al., 2022): tensors kept in them, and their matrix products.
#
# A tensor is kept as e4m3 numbers times a scale in float32: weights with a scale for each output channel, or one
# for all; activations with one for each token (or for all), found anew at every product; keys and values with one
# each for a layer. A product is torch's `_scaled_mm` on a CUDA device. Elsewhere both sides are widened to float32
# first: exact products of the very same numbers, which is what the device's are compared with.

E4M3 = torch.float8_e4m3fn
LARGEST = 448.0
"""The largest e4m3 number. There is no infinity: what is beyond would become NaN, so it is cut there."""
SMALLEST_SCALE = 1e-12  # of a token that is all zeros
ALIGNED = 16  # `_scaled_mm` takes matrices whose sides are multiples of this

Per = Literal["channel", "tensor"]


def has_fp8_weights(model: Model) -> bool:
    """Tell whether a model's matrices are kept and multiplied in fp8."""
    return model.dtype_bytes == 1


def kv_type(model: Model, computed_in: torch.dtype) -> torch.dtype:
    """The type of a model's pages on a device that computes in `computed_in`."""
    return E4M3 if model.kv_dtype_bytes == 1 else computed_in


def quantised(x: Tensor, scale: Tensor | float) -> Tensor:
    """x / scale, rounded to e4m3 and cut at its largest."""
    return (x.float() * (1.0 / scale)).clamp_(-LARGEST, LARGEST).to(E4M3)


def quantised_weight(weight: Tensor, per: Per = "channel") -> tuple[Tensor, Tensor]:
    """A matrix [out, in] in e4m3 and its scales, [out] or [1]: the largest number of each becomes e4m3's largest."""
    top = weight.abs().amax(1) if per == "channel" else weight.abs().max().view(1)
    scale = (top.float() / LARGEST).clamp_min_(SMALLEST_SCALE)
    return quantised(weight, scale[:, None] if per == "channel" else scale), scale


def quantised_rows(x: Tensor) -> tuple[Tensor, Tensor]:
    """Activations [tokens, width] in e4m3, and a scale [tokens, 1] for each token."""
    scale = (x.abs().amax(1, keepdim=True).float() / LARGEST).clamp_min_(SMALLEST_SCALE)
    return quantised(x, scale), scale


def product(x: Tensor, x_scale: Tensor, weight: Tensor, scale: Tensor, dtype: torch.dtype) -> Tensor:
    """x @ weight.T of e4m3 numbers, scaled: `x_scale` [tokens, 1] with `scale` [out], or one number each."""
    if not x.is_cuda:
        wide = weight.float() * (scale[:, None] if scale.numel() > 1 else scale)
        return linear(x.float() * x_scale, wide).to(dtype)
    of_weight = scale[None, :] if x_scale.numel() > 1 or scale.numel() > 1 else scale
    if of_weight.dim() == 2 and of_weight.shape[1] != len(weight):  # rows can only be paired with channels
        of_weight = of_weight.expand(1, len(weight)).contiguous()
    return torch._scaled_mm(x, weight.t(), scale_a=x_scale, scale_b=of_weight, out_dtype=dtype, use_fast_accum=True)


def stored(x: Tensor, scale: float, dtype: torch.dtype) -> Tensor:
    """Bring keys or values to the type of the pages."""
    return quantised(x, scale) if dtype == E4M3 else x


def widened(pages: Tensor, scale: float, dtype: torch.dtype) -> Tensor:
    """Bring keys or values from the pages to the type that computes."""
    return pages.to(dtype) * scale if pages.dtype == E4M3 else pages


def as_bytes(tensor: Tensor) -> Tensor:
    """View e4m3 numbers as bytes: few operators take that type, and bytes can be moved by any."""
    return tensor.view(torch.uint8) if tensor.dtype == E4M3 else tensor


def put(kv: Tensor, page: Tensor, offset: Tensor, key: Tensor, value: Tensor, scales: KVScales) -> None:
    """Write keys and values [tokens, kv_heads, head_dim] to their slots of one layer's pages."""
    raw = as_bytes(kv)
    raw[page, 0, :, offset] = as_bytes(stored(key, scales.key, kv.dtype))
    raw[page, 1, :, offset] = as_bytes(stored(value, scales.value, kv.dtype))


def taken(pages: Tensor, rows: Tensor) -> Tensor:
    """Take rows of pages, in the order given."""
    return as_bytes(pages).index_select(0, rows).view(pages.dtype)


def random_pages(pages: Tensor, seed: int, at_once: int = 2**26) -> None:
    """Fill pages with numbers of the order of 1; e4m3 pages in parts, as a generator draws no such numbers."""
    random = torch.Generator(device=pages.device).manual_seed(seed)
    if pages.dtype != E4M3:
        pages.normal_(generator=random)
        return
    flat = pages.view(-1)
    for start in range(0, len(flat), at_once):
        part = flat[start : start + at_once]
        part.copy_(torch.randn(len(part), generator=random, device=pages.device, dtype=torch.float32).to(E4M3))


RANDOM_KV_SCALE = 2.0**-4
"""The scale of random keys and values: those of the order of 1 and smaller ones then have three binary digits."""


@dataclass(frozen=True, slots=True)
class Norm:
    """A norm over the hidden width: LayerNorm with a bias, RMSNorm without."""

    weight: Tensor
    bias: Tensor | None


@dataclass(frozen=True, slots=True)
class Dense:
    """y = x @ weight.T + bias. With a `scale` the weight is of e4m3 numbers (`gpu_backend.weights`)."""

    weight: Tensor  # [out, in]
    bias: Tensor | None
    scale: Tensor | None = None  # float32 [out], or [1] for all of it


@dataclass(frozen=True, slots=True)
class Mlp:
    """Up (of a gated one: gate and up in one matrix), activation, down."""

    up: Dense
    down: Dense


@dataclass(frozen=True, slots=True)
class ExpertWeights:
    """Routed feed-forwards, and one that every token uses."""

    router: Tensor  # [experts, hidden]
    up: Tensor  # [experts, up width, hidden]
    down: Tensor  # [experts, hidden, intermediate]
    shared: Mlp | None


@dataclass(frozen=True, slots=True)
class Layer:
    """One layer of the decoder; `qkv` are query, key and value in one matrix."""

    attention_norm: Norm
    qkv: Dense
    query_norm: Tensor | None  # [head_dim]
    key_norm: Tensor | None
    out: Dense
    mlp_norm: Norm
    mlp: Mlp | ExpertWeights
    kv_scales: KVScales = UNSCALED


@dataclass(frozen=True, slots=True)
class Weights:
    """All weights of a model. `positions` is the table of learned positions, where the model has one."""

    embedding: Tensor  # [vocab, hidden]
    positions: Tensor | None
    layers: tuple[Layer, ...]
    norm: Norm
    head: Tensor  # [vocab, hidden]; the embedding itself where they are tied
    rope_base: float = 10_000.0
    norm_eps: float = 1e-5

    @property
    def device(self) -> torch.device:
        return self.embedding.device


def random_weights(model: Model, seed: int, device: str, dtype: torch.dtype) -> Weights:
    """Weights drawn from a normal distribution, scaled so that activations and logits are of the order of 1.

    The same seed gives the same weights on the same kind of device. Raises InputError for latent attention.
    """
    check_model(model)
    return _Maker(model, seed, device, dtype).weights()


def has_attention_alone(model: Model) -> bool:
    """Whether every layer is attention without a gate or a norm over all heads, full or with a window, and an MLP."""
    return not ({*model.layer_types} - {"*", "W"} or model.attention_gate or model.qk_norm_whole)


def check_model(model: Model) -> None:
    """Raise InputError for a shape or a precision that the decoder does not have."""
    if model.kv_lora_rank:
        what = f"the real backend has no multi-head latent attention ({model.name})"
        raise InputError(what, hint="a model without kv_lora_rank")
    if not has_attention_alone(model):
        what = f"the real backend has no layers but plain attention ({model.name})"
        raise InputError(what, hint="a model without layer_types, attention_gate and qk_norm_whole")
    if model.sliding_window:
        raise InputError(f"the real backend has no sliding window ({model.name})", hint="model.sliding_window: 0")
    if model.dtype_bytes not in (1, 2, 4) or model.multiplied_in != ("fp8" if model.dtype_bytes == 1 else "bf16"):
        what = f"{model.dtype_bytes:g}-byte weights multiplied in {model.multiplied_in}"
        hint = "dtype_bytes 1 (fp8, a scale for each channel), 2 or 4, with matmul_dtype auto"
        raise InputError(f"the real backend has no {what} ({model.name})", hint=hint)
    if has_fp8_weights(model):
        _check_fp8(model)


def _check_fp8(model: Model) -> None:
    if model.experts:
        raise InputError(f"the real backend has no experts in fp8 ({model.name})", hint="dtype_bytes: 2")
    sides = {
        "hidden": model.hidden, "heads x head_dim": model.heads * model.head_dim, "intermediate": model.intermediate,
        "kv_heads x head_dim": model.kv_heads * model.head_dim,
    }  # fmt: skip
    for name, side in sides.items():
        if side % ALIGNED:
            what = f"{name} is {side} ({model.name}), and products in fp8 need multiples of {ALIGNED}"
            raise InputError(what, hint="dtype_bytes: 2")


class _Maker:
    def __init__(self, model: Model, seed: int, device: str, dtype: torch.dtype) -> None:
        self._model = model
        self._random = torch.Generator(device=device).manual_seed(seed)
        self._options = {"device": device, "dtype": dtype}

    def weights(self) -> Weights:
        model = self._model
        embedding = self._normal((model.vocab, model.hidden), 1.0)
        if model.tie_embeddings:
            embedding /= math.sqrt(model.hidden)
        positions = self._normal((model.positions, model.hidden), 0.1) if model.positions else None
        layers = tuple([self._layer(index) for index in range(model.layers)])
        head = embedding if model.tie_embeddings else self._matrix(model.vocab, model.hidden)
        return Weights(embedding, positions, layers, self._norm(), head)

    def _layer(self, index: int) -> Layer:
        model = self._model
        width = (model.heads + 2 * model.kv_heads) * model.head_dim
        bias = model.qkv_bias or model.biases
        is_routed = model.experts > 0 and index >= model.dense_layers
        inner = model.dense_intermediate if model.experts and not is_routed else model.intermediate
        return Layer(
            attention_norm=self._norm(),
            qkv=self._dense(width, model.hidden, bias),
            query_norm=self._ones(model.head_dim) if model.qk_norm else None,
            key_norm=self._ones(model.head_dim) if model.qk_norm else None,
            out=self._dense(model.hidden, model.heads * model.head_dim, model.biases, self._residual),
            mlp_norm=self._norm(),
            mlp=self._experts() if is_routed else self._mlp(inner),
            kv_scales=KVScales(RANDOM_KV_SCALE, RANDOM_KV_SCALE) if model.kv_dtype_bytes == 1 else UNSCALED,
        )

    def _mlp(self, inner: int) -> Mlp:
        model = self._model
        wide = inner * (2 if model.gated_mlp else 1)
        up = self._dense(wide, model.hidden, model.biases)
        return Mlp(up, self._dense(model.hidden, inner, model.biases, self._residual))

    def _experts(self) -> ExpertWeights:
        model = self._model
        wide = model.intermediate * (2 if model.gated_mlp else 1)
        up = self._normal((model.experts, wide, model.hidden), 1 / math.sqrt(model.hidden))
        down = self._normal(
            (model.experts, model.hidden, model.intermediate), self._residual / math.sqrt(model.intermediate)
        )
        shared = self._mlp(model.shared_experts * model.intermediate) if model.shared_experts else None
        return ExpertWeights(self._matrix(model.experts, model.hidden), up, down, shared)

    @property
    def _residual(self) -> float:
        """The factor that damps what is added to the residual stream, by the number of additions, as in GPT-2."""
        return 1 / math.sqrt(2 * self._model.layers)

    def _norm(self) -> Norm:
        return Norm(
            self._ones(self._model.hidden), self._normal((self._model.hidden,), 0.02) if self._model.biases else None
        )

    def _dense(self, out: int, into: int, bias: bool, gain: float = 1.0) -> Dense:
        weight, added = self._matrix(out, into, gain), self._normal((out,), 0.02) if bias else None
        return quantised_dense(weight, added) if has_fp8_weights(self._model) else Dense(weight, added)

    def _matrix(self, out: int, into: int, gain: float = 1.0) -> Tensor:
        return self._normal((out, into), gain / math.sqrt(into))

    def _ones(self, count: int) -> Tensor:
        return torch.ones(count, **self._options)

    def _normal(self, shape: tuple[int, ...], deviation: float) -> Tensor:
        drawn = torch.empty(shape, **self._options)
        return drawn.normal_(0.0, deviation, generator=self._random)


def quantised_dense(weight: Tensor, bias: Tensor | None) -> Dense:
    """Quantise a layer's matrix to fp8, with a scale for each output channel."""
    matrix, scale = quantised_weight(weight)
    return Dense(matrix, bias, scale)


# Real weights: a folder of safetensors and its config.json, as the hub keeps Llama, Mistral, Mixtral, Qwen2 and
# Qwen3.
#
# The format is read here (huggingface/safetensors: eight bytes of length, a JSON header, the numbers), so that
# nothing has to be installed for it. Files are mapped, not read whole. Matrices in fp8 have a `weight_scale` each,
# one number or one for each output channel, as llm-compressor and vLLM write them; those of a model in fp8 whose
# folder has wider ones are quantised here, and a cache in fp8 takes `k_scale` and `v_scale` of a layer where they
# are.

_TYPES = {
    "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16, "F64": torch.float64, "F8_E4M3": E4M3,
}  # fmt: skip
_INDEX, _SINGLE = "model.safetensors.index.json", "model.safetensors"


def load_weights(folder: Path, model: Model, device: str, dtype: torch.dtype) -> Weights:
    """Read a folder's weights for a model of these dimensions. InputError for what the decoder cannot compute."""
    check_model(model)
    if model.positions or not model.gated_mlp:
        raise InputError("only weights of models with rope and a gated feed-forward can be read", file=str(folder))
    config = _json(folder / "config.json")
    scaling = config.get("rope_scaling") or config.get("rope_parameters") or {}
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    if kind != "default":
        raise InputError(f"the decoder has no rope of type {kind!r}", file=str(folder / "config.json"))
    base = config.get("rope_theta", scaling.get("rope_theta", 10_000.0))
    eps = config.get("rms_norm_eps", 1e-5)
    with _tensors(folder) as found:
        return _Reader(found, folder, model, device, dtype).weights(float(base), float(eps))


class _Reader:
    def __init__(
        self, found: Mapping[str, Tensor], folder: Path, model: Model, device: str, dtype: torch.dtype
    ) -> None:
        self._found, self._folder, self._model = found, folder, model
        self._device, self._dtype = device, dtype

    def weights(self, rope_base: float, norm_eps: float) -> Weights:
        model = self._model
        embedding = self._get("model.embed_tokens.weight", (model.vocab, model.hidden))
        head = embedding
        if not model.tie_embeddings:
            head = self._get("lm_head.weight", (model.vocab, model.hidden))
        layers = tuple([self._layer(index) for index in range(model.layers)])
        return Weights(embedding, None, layers, self._norm("model.norm"), head, rope_base, norm_eps)

    def _layer(self, index: int) -> Layer:
        model, at = self._model, f"model.layers.{index}"
        normed = model.qk_norm
        width = model.heads * model.head_dim
        return Layer(
            attention_norm=self._norm(f"{at}.input_layernorm"),
            qkv=self._joined([f"{at}.self_attn.{name}_proj" for name in "qkv"], model.qkv_bias),
            query_norm=self._get(f"{at}.self_attn.q_norm.weight", (model.head_dim,)) if normed else None,
            key_norm=self._get(f"{at}.self_attn.k_norm.weight", (model.head_dim,)) if normed else None,
            out=self._joined([f"{at}.self_attn.o_proj"], False, (model.hidden, width)),
            mlp_norm=self._norm(f"{at}.post_attention_layernorm"),
            mlp=self._experts(at) if model.experts and index >= model.dense_layers else self._mlp(f"{at}.mlp"),
            kv_scales=KVScales(self._number(f"{at}.self_attn.k_scale"), self._number(f"{at}.self_attn.v_scale")),
        )

    def _mlp(self, at: str) -> Mlp:
        up = self._joined([f"{at}.gate_proj", f"{at}.up_proj"], False)
        return Mlp(up, self._joined([f"{at}.down_proj"], False))

    def _experts(self, at: str) -> ExpertWeights:
        """Read a layer's experts, by Mixtral's names or by Qwen's."""
        model = self._model
        if model.shared_experts:
            raise InputError("weights of shared experts cannot be read", file=str(self._folder))
        if f"{at}.block_sparse_moe.gate.weight" in self._found:
            at, (gate, up, down) = f"{at}.block_sparse_moe", ("w1", "w3", "w2")
        else:
            at, (gate, up, down) = f"{at}.mlp", ("gate_proj", "up_proj", "down_proj")
        each = [f"{at}.experts.{expert}" for expert in range(model.experts)]
        ups = [self._joined([f"{expert}.{gate}", f"{expert}.{up}"], False).weight for expert in each]
        downs = [self._get(f"{expert}.{down}.weight", (model.hidden, model.intermediate)) for expert in each]
        router = self._get(f"{at}.gate.weight", (model.experts, model.hidden))
        return ExpertWeights(router, torch.stack(ups), torch.stack(downs), None)

    def _norm(self, name: str) -> Norm:
        return Norm(self._get(f"{name}.weight", (self._model.hidden,)), None)

    def _joined(self, names: list[str], has_bias: bool, shape: tuple[int, ...] | None = None) -> Dense:
        """Stack matrices of `shape`, one above another, into one."""
        bias = torch.cat([self._get(f"{name}.bias") for name in names]) if has_bias else None
        in_fp8 = has_fp8_weights(self._model)
        if in_fp8 and all(self._there(f"{name}.weight").dtype == E4M3 for name in names):
            parts = [as_bytes(self._there(f"{name}.weight", shape)) for name in names]
            scales = [self._scale(name).expand(len(part)) for name, part in zip(names, parts, strict=True)]
            weight = torch.cat(parts).view(E4M3).to(self._device)
            return Dense(weight, bias, torch.cat(scales).to(self._device).contiguous())
        weight = torch.cat([self._get(f"{name}.weight", shape) for name in names])
        return quantised_dense(weight, bias) if in_fp8 else Dense(weight, bias)

    def _scale(self, name: str) -> Tensor:
        """The scale of a matrix in fp8: one number, or one for each output channel."""
        scale = self._there(f"{name}.weight_scale").float().flatten()
        if len(scale) not in (1, len(self._there(f"{name}.weight"))):
            raise InputError(f"{name}.weight_scale has {len(scale)} numbers", file=str(self._folder))
        return scale

    def _number(self, name: str) -> float:
        """A scale of the cache, where it is in fp8; 1.0 where the weights have none."""
        found = self._found.get(name) if self._model.kv_dtype_bytes == 1 else None
        return 1.0 if found is None else float(found.float())

    def _get(self, name: str, shape: tuple[int, ...] | None = None) -> Tensor:
        tensor = self._there(name, shape)
        if tensor.dtype == E4M3:
            tensor = tensor.float() * self._scale(name.removesuffix(".weight"))[:, None]
        return tensor.to(device=self._device, dtype=self._dtype, copy=True)

    def _there(self, name: str, shape: tuple[int, ...] | None = None) -> Tensor:
        tensor = self._found.get(name)
        if tensor is None:
            raise InputError(f"the weights have no {name}", file=str(self._folder))
        if shape is not None and tuple(tensor.shape) != shape:
            raise InputError(f"{name} is {tuple(tensor.shape)}, and the model needs {shape}", file=str(self._folder))
        return tensor


@contextmanager
def _tensors(folder: Path) -> Iterator[Mapping[str, Tensor]]:
    """All tensors of a folder, views of its mapped files."""
    names = [_SINGLE]
    if (folder / _INDEX).exists():
        names = sorted(set(_json(folder / _INDEX)["weight_map"].values()))
    found: dict[str, Tensor] = {}
    mapped: list[mmap.mmap] = []
    for name in names:
        try:
            with (folder / name).open("rb") as file:
                mapped.append(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY))
        except (OSError, ValueError) as error:
            raise InputError(f"cannot read the weights: {error}", file=str(folder / name)) from None
        found |= read_safetensors(mapped[-1], folder / name)
    yield found


def read_safetensors(data: Any, path: Path) -> dict[str, Tensor]:
    """Return the tensors in a file's bytes, as views of them. InputError where it is no file of safetensors."""
    try:
        length = int.from_bytes(data[:8], "little")
        header = json.loads(bytes(data[8 : 8 + length]))
        found = {}
        for name, entry in header.items():
            if name == "__metadata__":
                continue
            begin, end = entry["data_offsets"]
            dtype = _TYPES[entry["dtype"]]
            count = (end - begin) // dtype.itemsize
            flat = torch.frombuffer(data, dtype=dtype, count=count, offset=8 + length + begin)
            found[name] = flat.view(entry["shape"])
    except (KeyError, TypeError, ValueError, UnicodeDecodeError, RuntimeError) as error:
        raise InputError(f"not a file of safetensors: {error}", file=str(path)) from None
    return found


def _json(path: Path) -> dict[str, Any]:
    try:
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"the file cannot be read: {error}", file=str(path)) from None
    return found
