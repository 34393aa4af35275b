"""Models from the config.json of their page at Hugging Face."""

import json
from pathlib import Path

import pytest
import yaml

from simulator.errors import InputError
from simulator.hardware.model_config import model_from_config, named_model, read_model_config
from simulator.hardware.models import MODELS, custom_model, find_model
from tests.simulator.hardware.published_configs import CONFIGS, DEEPSEEK, INT4, QWEN_MOE, Config, gpt_oss, llama, qwen
from tests.simulator.hardware.test_models import DEEPSEEK_V3


def test_every_built_in_model_has_its_config() -> None:
    assert set(CONFIGS) == set(MODELS)


@pytest.mark.parametrize("name", CONFIGS)
def test_a_config_gives_exactly_the_built_in_model(name: str) -> None:
    """All dimensions, so parameters and KV bytes too; and its name, by which profiles are found."""
    assert model_from_config(CONFIGS[name], "somewhere") == find_model(name)


def test_multi_head_latent_attention_and_fp8() -> None:
    found = model_from_config(DEEPSEEK, "deepseek-v3")
    assert {name: getattr(found, name) for name in DEEPSEEK_V3} == DEEPSEEK_V3
    assert f"{found.num_parameters / 1e9:.1f}" == "671.0"
    assert found.kv_bytes_per_token(8) == 61 * (512 + 64) * 2
    assert (found.dtype_bytes, found.kv_dtype_bytes, found.multiplied_in) == (1, 2, "fp8_block")
    whole = model_from_config({**DEEPSEEK, "quantization_config": {"quant_method": "fp8"}}, "one-scale-a-matrix")
    assert whole.multiplied_in == "fp8"


fp8 = {"num_bits": 8, "type": "float", "strategy": "channel", "dynamic": False, "symmetric": True}
nvfp4 = {"num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16, "symmetric": True}
int8 = {"num_bits": 8, "type": "int", "strategy": "channel", "symmetric": True}
CACHE = {"num_bits": 8, "type": "float", "dynamic": False}


def group(weights: Config, inputs: Config | None) -> Config:
    return {"targets": ["Linear"], "weights": weights, "input_activations": inputs, "output_activations": None}


def ct(weights: Config, inputs: Config | None, **more: object) -> Config:
    """compressed-tensors, as LLM Compressor writes it."""
    return {"quant_method": "compressed-tensors", "config_groups": {"group_0": group(weights, inputs)},
            "ignore": ["lm_head"], "kv_cache_scheme": None, **more}  # fmt: skip


@pytest.mark.parametrize(
    ("quantization", "width", "multiplied_in", "kv"),
    [
        (ct(fp8, {**fp8, "strategy": "token", "dynamic": True}, format="float-quantized"), 1, "fp8", 2),
        (ct({**fp8, "strategy": "block", "block_structure": [128, 128]}, fp8), 1, "fp8_block", 2),
        (ct(nvfp4, nvfp4, format="nvfp4-pack-quantized", kv_cache_scheme=CACHE), 0.5625, "nvfp4", 1),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4", "kv_cache_scheme": CACHE, "ignore": ["lm_head"],
          "config_groups": {"group_0": group(nvfp4, nvfp4)}, "producer": {"name": "modelopt"}}, 0.5625, "nvfp4", 1),
        ({"quant_method": "modelopt", "quant_algo": "FP8"}, 1, "fp8", 2),
        ({"quant_method": "modelopt", "quantization": {"quant_algo": "FP8", "kv_cache_quant_algo": "FP8"}}, 1, "fp8",
         1),
        ({"quant_method": "modelopt_fp4", "quant_algo": "NVFP4"}, 0.5625, "nvfp4", 2),
    ],
)  # fmt: skip
def test_precisions_of_quantisers(quantization: Config, width: float, multiplied_in: str, kv: int) -> None:
    found = model_from_config(llama(quantization_config=quantization), "quantised")
    assert (found.dtype_bytes, found.multiplied_in, found.kv_dtype_bytes) == (width, multiplied_in, kv)


@pytest.mark.parametrize(
    ("quantization", "expert_dtype"),
    [
        ({"quant_method": "mxfp4"}, "mxfp4"),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ["model.layers.0.self_attn*"]}, "nvfp4"),
        ({"quant_method": "modelopt_fp4",
          "quantization": {"quant_algo": "NVFP4", "exclude_modules": ["*.self_attn.*"]}}, "nvfp4"),
        ({"quant_method": "compressed-tensors", "config_groups": {"group_0": INT4}, "ignore": ["re:.*self_attn.*"]},
         "int4"),
        ({"quant_method": "fp8", "weight_block_size": [128, 128]}, "auto"),
    ],
)  # fmt: skip
def test_experts_may_be_quantised_alone(quantization: Config, expert_dtype: str) -> None:
    found = model_from_config(qwen(48, 2048, 6144, 32, 4, **QWEN_MOE, quantization_config=quantization), "mine")
    assert found.expert_dtype == expert_dtype
    assert found.dtype_bytes == (1 if expert_dtype == "auto" else 2)
    per_weight = {"mxfp4": 0.53125, "nvfp4": 0.5625, "int4": 0.5625, "auto": 1}[expert_dtype]
    routed = found.layers * found.experts * found.expert_parameters
    tables = 2 * found.vocab * found.hidden
    rest = found.num_parameters - routed - tables
    assert found.weight_bytes() == rest * found.dtype_bytes + routed * per_weight + tables * 2
    with pytest.raises(InputError, match="quant_method"):
        model_from_config(llama(quantization_config={"quant_method": "mxfp4"}), "no experts")


def test_layers_of_gpt_oss_alternate() -> None:
    spelt = model_from_config(gpt_oss(24, 32), "mine")
    assert (spelt.windowed_layers, spelt.sliding_window, spelt.max_model_len) == (12, 128, 131072)
    assert model_from_config(gpt_oss(24, 32, layer_types=None), "mine") == spelt
    with pytest.raises(InputError, match="layer_types has 'chunked'"):
        model_from_config(gpt_oss(24, 32, layer_types=["chunked"] * 24), "mine")


@pytest.mark.parametrize(
    ("fields", "parameters", "kv_bytes"),
    [  # parameters as the makers state them, in billions
        ({"model_type": "phi3", "hidden_size": 3072, "intermediate_size": 8192, "num_key_value_heads": 32,
          "vocab_size": 32064, "max_position_embeddings": 131072, "sliding_window": 262144,
          "rope_scaling": {"type": "longrope", "short_factor": [1.0], "long_factor": [1.0]}}, "3.82", 384 * 1024),
        ({"model_type": "gemma", "hidden_size": 3072, "intermediate_size": 24576, "num_hidden_layers": 28,
          "num_attention_heads": 16, "num_key_value_heads": 16, "head_dim": 256, "vocab_size": 256000,
          "tie_word_embeddings": None, "rope_scaling": None}, "8.54", 28 * 2 * 16 * 256 * 2),
        ({"hidden_size": 3072, "intermediate_size": 8192, "num_hidden_layers": 28, "num_attention_heads": 24,
          "head_dim": 128, "tie_word_embeddings": True}, "3.21", 112 * 1024),
    ],
    ids=["phi-3-mini-128k", "gemma-7b", "llama-3.2-3b"],
)  # fmt: skip
def test_models_that_are_not_built_in(fields: Config, parameters: str, kv_bytes: int) -> None:
    found = model_from_config(llama(**fields), "mine")
    assert found.name == "mine"
    assert f"{found.num_parameters / 1e9:.2f}" == parameters
    assert found.kv_bytes_per_token() == kv_bytes


def test_yarn_stretches_the_context() -> None:
    scaling = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}
    found = model_from_config(qwen(36, 4096, 12288, 32, 8, rope_scaling=scaling), "long")
    assert (found.name, found.max_model_len) == ("qwen3-8b", 131072)


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({}, ["no model_type", "llama, mistral"]),
        ({"model_type": "lama"}, ["unknown model_type 'lama'", "did you mean llama?", "mapping of dimensions"]),
        ({"model_type": "mamba", "state_size": 16}, ["state_size", "state-space"]),
        (llama(text_config={"hidden_size": 1}), ["text_config means several", "hidden: 1, intermediate: ..."]),
        (llama(attention_bias=True), ["attention_bias True"]),
        (llama(torch_dtype="int8"), ["torch_dtype 'int8'", "bfloat16"]),
        (llama(model_type="mistral", sliding_window=4096), ["sliding_window 4096", "max_position_embeddings"]),
        (qwen(36, 4096, 12288, 32, 8, layer_types=["full_attention", "linear_attention"]), ["linear_attention"]),
        (qwen(48, 2048, 6144, 32, 4, **QWEN_MOE | {"mlp_only_layers": [0]}), ["mlp_only_layers [0]"]),
        (llama(quantization_config={"quant_method": "awq", "bits": 4}), ["quant_method 'awq'", "fp8"]),
        (llama(quantization_config="fp8"), ["quant_method 'fp8'"]),
        (llama(quantization_config={"quant_method": "modelopt", "quant_algo": "W4A8_AWQ"}), ["quant_algo 'W4A8_AWQ'"]),
        (llama(quantization_config=ct(int8, int8)), ["weights of int 8 times inputs of int 8"]),
        (llama(quantization_config=ct(nvfp4, None)), ["weights of float 4 times inputs of bf16"]),
        (llama(quantization_config={"quant_method": "compressed-tensors"}), ["config_groups None"]),
        (llama(quantization_config={**ct(nvfp4, nvfp4), "config_groups": {"a": group(nvfp4, nvfp4),
                                                                         "b": group(fp8, fp8)}}), ["groups differ"]),
        (llama(rope_scaling={"rope_type": "new", "factor": 2.0}), ["rope_scaling 'new'", "yarn"]),
        (llama(hidden_size=None, num_hidden_layers=None), ["missing num_hidden_layers, hidden_size"]),
        (llama(num_hidden_layers="32"), ["num_hidden_layers must be a whole number, not '32'"]),
        (llama(num_key_value_heads=5), ["num_key_value_heads (5) must divide num_attention_heads (32)"]),
        ({**CONFIGS["glm-5"], "index_topk_freq": 4}, ["index_topk_freq 4"]),
        ({**CONFIGS["nemotron-3-nano-30b-a3b"], "layers_block_type": ["mamba", "conv"]}, ["layers_block_type"]),
        ({"model_type": "nemotron_h", "num_hidden_layers": 2}, ["layers_block_type is missing"]),
        ({"model_type": "llama", "index_topk": 8}, ["index_topk means sparse attention"]),
    ],
)  # fmt: skip
def test_what_is_not_understood_is_refused_by_its_field(config: Config, said: list[str]) -> None:
    with pytest.raises(InputError) as caught:
        model_from_config(config, "x")
    for part in ["config.json: ", *said]:
        assert part in str(caught.value)


def test_the_advice_for_several_modalities_is_not_refused() -> None:
    """A language model that is understood goes into a file of its own; of another, the dimensions are told."""
    known: Config = {"model_type": "llava", "text_config": llama(), "vision_config": {"hidden_size": 1024}}
    with pytest.raises(InputError, match="text_config as a file of its own"):
        model_from_config(known, "x")
    assert model_from_config(known["text_config"], "x").name == "llama-3.1-8b"
    fields: Config = {**llama(), "model_type": "gemma9_text"}
    at_top = {**fields, "model_type": "qwen9_vl", "vision_config": {"hidden_size": 1024}}
    for config in ({"model_type": "gemma9", "text_config": fields}, at_top):
        with pytest.raises(InputError, match="dimensions as a mapping") as caught:
            model_from_config(config, "x")
        mapping = yaml.safe_load(str(caught.value).partition("`model: ")[2].partition("`")[0])
        assert custom_model(mapping).layers == 32


def test_what_modelopt_wrote_beside_the_file_counts(tmp_path: Path) -> None:
    """Older ModelOpt writes the precision into hf_quant_config.json, which vLLM reads too (transformers_utils)."""
    (tmp_path / "config.json").write_text(json.dumps(llama()))
    (tmp_path / "hf_quant_config.json").write_text(json.dumps({"quantization": {"quant_algo": "FP8"}}))
    assert read_model_config(tmp_path / "config.json").dtype_bytes == 1


def test_a_file_is_named_after_its_folder(tmp_path: Path) -> None:
    folder = tmp_path / "Tiny-1B"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(llama(num_hidden_layers=4)))
    assert read_model_config(folder / "config.json").name == "Tiny-1B"
    (folder / "other.json").write_text(json.dumps(llama(num_hidden_layers=4)))
    assert named_model(str(folder / "other.json")).name == "other"
    assert named_model("gpt2") is find_model("gpt2")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "No such file"),
        (b"{", "is not JSON"),
        (b"\xff", "is not JSON"),
        (b"[" * 10**5, "JSON"),
        (b"[]", "is not a mapping"),
    ],
)
def test_files_that_are_none(content: bytes | None, said: str, tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(InputError, match=said):
        read_model_config(path)
