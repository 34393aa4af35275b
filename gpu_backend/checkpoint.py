"""Real weights: a folder of safetensors and its config.json, as the hub keeps Llama, Mistral, Mixtral, Qwen2 and Qwen3.

The format is read here (huggingface/safetensors: eight bytes of length, a JSON header, the numbers), so that nothing
has to be installed for it. Files are mapped, not read whole. Matrices in fp8 have a `weight_scale` each, one number or
one for each output channel, as llm-compressor and vLLM write them; those of a model in fp8 whose folder has wider ones
are quantised here, and a cache in fp8 takes `k_scale` and `v_scale` of a layer where they are.
"""

from __future__ import annotations

import json
import mmap
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gpu_backend.fp8 import E4M3, as_bytes, has_fp8_weights
from gpu_backend.weights import Dense, ExpertWeights, Layer, Mlp, Norm, Weights, check_model, quantised_dense
from gpu_backend.work import KVScales
from simulator.errors import InputError
from simulator.hardware.models import Model

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
