"""Real weights: what is written in the hub's form is read back, and its logits are those of transformers."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed (pip install -c constraints.txt -e '.[gpu]')")

from gpu_backend.backend import Backend
from gpu_backend.device import Cpu
from gpu_backend.weights import ExpertWeights, Weights, load_weights, random_weights
from gpu_backend.work import ScheduledPart, Work
from simulator.errors import InputError
from simulator.hardware.model_config import read_model_config
from simulator.hardware.models import Model, custom_model
from tests.gpu_maker import CLOSE

BASE: dict[str, Any] = {
    "layers": 2, "hidden": 64, "intermediate": 96, "heads": 4, "kv_heads": 2, "vocab": 128, "max_model_len": 256,
    "dtype_bytes": 4, "kv_dtype_bytes": 4,
}  # fmt: skip
SHAPES: dict[str, dict[str, Any]] = {
    "llama": {},
    "qwen2": {"qkv_bias": True, "tie_embeddings": True},
    "qwen3": {"qk_norm": True},
    "experts": {"experts": 4, "active_experts": 2},
}


def named(model: Model, weights: Weights) -> dict[str, Any]:
    """The weights under the hub's names."""
    found = {"model.embed_tokens.weight": weights.embedding, "model.norm.weight": weights.norm.weight}
    if not model.tie_embeddings:
        found["lm_head.weight"] = weights.head
    widths = [model.heads * model.head_dim, *[model.kv_heads * model.head_dim] * 2]
    for index, layer in enumerate(weights.layers):
        at = f"model.layers.{index}"
        found[f"{at}.input_layernorm.weight"] = layer.attention_norm.weight
        found[f"{at}.post_attention_layernorm.weight"] = layer.mlp_norm.weight
        found[f"{at}.self_attn.o_proj.weight"] = layer.out.weight
        for name, part in zip("qkv", layer.qkv.weight.split(widths), strict=True):
            found[f"{at}.self_attn.{name}_proj.weight"] = part
        if layer.qkv.bias is not None:
            for name, part in zip("qkv", layer.qkv.bias.split(widths), strict=True):
                found[f"{at}.self_attn.{name}_proj.bias"] = part
        if layer.query_norm is not None and layer.key_norm is not None:
            found[f"{at}.self_attn.q_norm.weight"] = layer.query_norm
            found[f"{at}.self_attn.k_norm.weight"] = layer.key_norm
        mlp = layer.mlp
        if isinstance(mlp, ExpertWeights):
            found[f"{at}.mlp.gate.weight"] = mlp.router
            for expert, (up, down) in enumerate(zip(mlp.up, mlp.down, strict=True)):
                here = f"{at}.mlp.experts.{expert}"
                found[f"{here}.gate_proj.weight"], found[f"{here}.up_proj.weight"] = up.chunk(2)
                found[f"{here}.down_proj.weight"] = down
        else:
            found[f"{at}.mlp.gate_proj.weight"], found[f"{at}.mlp.up_proj.weight"] = mlp.up.weight.chunk(2)
            found[f"{at}.mlp.down_proj.weight"] = mlp.down.weight
    return found


def write(path: Path, tensors: dict[str, Any]) -> None:
    """A file of safetensors."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    data = b""
    for name, tensor in tensors.items():
        raw = tensor.contiguous().flatten().view(torch.uint8).numpy().tobytes()
        header[name] = {
            "dtype": "F32" if tensor.dtype == torch.float32 else "F8_E4M3",
            "shape": list(tensor.shape),
            "data_offsets": [len(data), len(data) + len(raw)],
        }
        data += raw
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)


def logits(backend: Backend) -> Any:
    tokens = np.random.default_rng(1).integers(0, 128, 37).tolist()
    return backend.logits(Work((), (ScheduledPart(0, 0, tokens, list(range(1, 11))),)))


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("files", [1, 2])
def test_what_was_written_is_read(name: str, files: int, tmp_path: Path) -> None:
    model = custom_model({**BASE, **SHAPES[name]})
    random = Backend(model, Cpu(1), 32, 4, seed=5)
    tensors = named(model, random.decoder.weights)
    (tmp_path / "config.json").write_text(json.dumps({"rope_theta": 10000.0, "rms_norm_eps": 1e-5}))
    if files == 1:
        write(tmp_path / "model.safetensors", tensors)
    else:
        where = {key: f"model-{index % 2}.safetensors" for index, key in enumerate(tensors)}
        for file in set(where.values()):
            write(tmp_path / file, {key: tensor for key, tensor in tensors.items() if where[key] == file})
        (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": where}))
    read = Backend(model, Cpu(1), 32, 4, seed=6, weights=tmp_path)
    assert torch.equal(logits(read), logits(random))


def test_the_config_sets_rope_and_norms(tmp_path: Path) -> None:
    model = custom_model(BASE)
    write(tmp_path / "model.safetensors", named(model, random_weights(model, 5, "cpu", torch.float32)))
    (tmp_path / "config.json").write_text(json.dumps({"rope_theta": 5e5, "rms_norm_eps": 0.1}))
    found = load_weights(tmp_path, model, "cpu", torch.float32)
    assert (found.rope_base, found.norm_eps) == (5e5, 0.1)
    other = Backend(model, Cpu(1), 32, 4, weights=tmp_path)
    assert float((logits(other) - logits(Backend(model, Cpu(1), 32, 4, seed=5))).abs().max()) > 0.01


@pytest.mark.parametrize("name", ["llama", "qwen2", "qwen3", "mixtral"])
def test_logits_are_those_of_transformers(name: str, tmp_path: Path) -> None:
    transformers = pytest.importorskip(
        "transformers", reason="transformers is not installed (pip install transformers)"
    )
    common = {
        "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "vocab_size": 128, "max_position_embeddings": 256,
    }  # fmt: skip
    config = {
        "llama": lambda: transformers.LlamaConfig(**common, rms_norm_eps=1e-6),
        "qwen2": lambda: transformers.Qwen2Config(**common),
        "qwen3": lambda: transformers.Qwen3Config(**common, head_dim=16, tie_word_embeddings=True),
        "mixtral": lambda: transformers.MixtralConfig(**common, num_local_experts=4, num_experts_per_tok=2),
    }[name]()
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config).float().eval()
    for parameter in model.parameters():  # drawn too small, everything would look alike
        parameter.data.mul_(3) if parameter.dim() > 1 else parameter.data.add_(0.1 * torch.randn_like(parameter))
    model.save_pretrained(tmp_path)
    dimensions = replace(read_model_config(tmp_path / "config.json"), dtype_bytes=4, kv_dtype_bytes=4)
    tokens = np.random.default_rng(1).integers(0, 128, 37).tolist()
    with torch.inference_mode():
        expected = model(torch.tensor([tokens])).logits[0, -1]
    found = logits(Backend(dimensions, Cpu(1), 32, 4, weights=tmp_path))[0]
    assert float((found - expected).abs().max()) < CLOSE


@pytest.mark.parametrize(
    ("config", "data", "said"),
    [
        ({}, b"", "cannot read the weights"),
        ({}, b"\x05\0\0\0\0\0\0\0nojso", "not a file of safetensors"),
        ({"rope_scaling": {"rope_type": "yarn"}}, b"x", "no rope of type 'yarn'"),
        ({}, (2).to_bytes(8, "little") + b"{}", "have no model.embed_tokens.weight"),
    ],
)
def test_other_folders_are_refused(config: dict[str, Any], data: bytes, said: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "model.safetensors").write_bytes(data)
    with pytest.raises(InputError, match=said):
        load_weights(tmp_path, custom_model(BASE), "cpu", torch.float32)
