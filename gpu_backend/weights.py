"""A model's weights, and random ones for the shapes of the model table."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from gpu_backend.fp8 import ALIGNED, has_fp8_weights, quantised_weight
from gpu_backend.work import UNSCALED, KVScales
from simulator.errors import InputError
from simulator.hardware.models import Model

RANDOM_KV_SCALE = 2.0**-4
"""The scale of random keys and values: those of the order of 1 and smaller ones then have three binary digits."""


@dataclass(frozen=True, slots=True)
class Norm:
    """A norm over the hidden width: LayerNorm with a bias, RMSNorm without."""

    weight: Tensor
    bias: Tensor | None


@dataclass(frozen=True, slots=True)
class Dense:
    """y = x @ weight.T + bias. With a `scale` the weight is of e4m3 numbers (`gpu_backend.fp8`)."""

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
