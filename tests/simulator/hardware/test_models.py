from dataclasses import replace
from math import ceil

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.errors import InputError
from simulator.hardware.models import HUGGING_FACE, MODELS, SAME_DIMENSIONS, Model, custom_model, find_model

# As the makers state them (embeddings included, tied ones once), in billions.
KNOWN_PARAMETERS = {
    "llama-2-7b": "6.74",
    "llama-2-70b": "68.98",
    "llama-3.1-8b": "8.03",
    "llama-3.1-70b": "70.55",
    "llama-3.1-405b": "405.85",
    "mistral-7b": "7.24",
    "mixtral-8x7b": "46.70",
    "mixtral-8x22b": "140.63",
    "qwen2.5-7b": "7.62",
    "qwen2.5-72b": "72.71",
    "qwen3-0.6b": "0.60",
    "qwen3-8b": "8.19",
    "qwen3-14b": "14.77",
    "qwen3-32b": "32.76",
    "mistral-small-24b": "23.57",
    "qwen3-30b-a3b": "30.53",
    "qwen3-235b-a22b": "235.09",
    "gpt-oss-20b": "20.91",
    "gpt-oss-120b": "116.79",
    "gemma-3-27b": "27.01",
    "qwen3-next-80b-a3b": "79.67",
    "qwen3.5-35b-a3b": "34.66",
    "nemotron-nano-9b-v2": "8.89",
    "gpt2": "0.12",
    "deepseek-v3": "671.03",
    "kimi-k2": "1026.41",
    "deepseek-v2": "235.74",
    "deepseek-v2-lite": "15.71",
    "qwen3-coder-480b-a35b": "480.15",
    "llama-4-scout": "107.77",
    "llama-4-maverick": "400.71",
    "glm-4.5": "352.80",
    "glm-4.5-air": "106.85",
    "minimax-m2": "228.69",
    "qwen3.5-397b-a17b": "396.35",
    "nemotron-3-nano-30b-a3b": "31.58",
    "kimi-k2-thinking": "1026.41",
    "deepseek-v3.2": "671.88",
    "glm-5": "743.91",
}

KIB_PER_TOKEN = {
    "llama-2-7b": 512,
    "llama-2-70b": 320,
    "llama-3.1-8b": 128,
    "llama-3.1-70b": 320,
    "llama-3.1-405b": 504,
    "mistral-7b": 128,
    "mixtral-8x7b": 128,
    "mixtral-8x22b": 224,
    "qwen2.5-7b": 56,
    "qwen2.5-72b": 320,
    "qwen3-0.6b": 112,
    "qwen3-8b": 144,
    "qwen3-14b": 160,
    "qwen3-32b": 256,
    "mistral-small-24b": 160,
    "qwen3-30b-a3b": 96,
    "qwen3-235b-a22b": 188,
    "gpt-oss-20b": 48,
    "gpt-oss-120b": 72,
    "gemma-3-27b": 62 * 2 * 16 * 128 * 2 / 1024,
    "qwen3-next-80b-a3b": 12 * 2 * 2 * 256 * 2 / 1024,
    "qwen3.5-35b-a3b": 10 * 2 * 2 * 256 * 2 / 1024,
    "nemotron-nano-9b-v2": 4 * 2 * 8 * 128 * 2 / 1024,
    "gpt2": 36,
    "deepseek-v3": 61 * 576 * 2 / 1024,
    "kimi-k2": 61 * 576 * 2 / 1024,
    "deepseek-v2": 60 * 576 * 2 / 1024,
    "deepseek-v2-lite": 27 * 576 * 2 / 1024,
    "qwen3-coder-480b-a35b": 248,
    "llama-4-scout": 192,
    "llama-4-maverick": 192,
    "glm-4.5": 368,
    "glm-4.5-air": 184,
    "minimax-m2": 248,
    "qwen3.5-397b-a17b": 15 * 2 * 2 * 256 * 2 / 1024,
    "nemotron-3-nano-30b-a3b": 6 * 2 * 2 * 128 * 2 / 1024,
    "kimi-k2-thinking": 61 * 576 * 2 / 1024,
    "deepseek-v3.2": 61 * (576 * 2 + 132) / 1024,
    "glm-5": 78 * (576 * 2 + 132) / 1024,
}

DIMENSIONS: dict[str, object] = {
    "layers": 32,
    "hidden": 4096,
    "intermediate": 14336,
    "heads": 32,
    "kv_heads": 8,
    "vocab": 128256,
    "max_model_len": 131072,
}

# From DeepSeek's published config.json files. The 671.0 billion leave out the separate multi-token-prediction module.
DEEPSEEK_V3: dict[str, object] = {
    "layers": 61,
    "hidden": 7168,
    "intermediate": 2048,
    "heads": 128,
    "kv_heads": 128,
    "head_dim": 128,
    "vocab": 129280,
    "max_model_len": 163840,
    "experts": 256,
    "active_experts": 8,
    "shared_experts": 1,
    "dense_layers": 3,
    "dense_intermediate": 18432,
    "q_lora_rank": 1536,
    "kv_lora_rank": 512,
    "rope_head_dim": 64,
}


@pytest.mark.parametrize("name", MODELS)
def test_parameters_are_the_known_ones(name: str) -> None:
    assert f"{MODELS[name].num_parameters / 1e9:.2f}" == KNOWN_PARAMETERS[name]


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("gpt2", 124_439_808),  # learned positions, biases everywhere, tied embeddings
        ("llama-3.1-8b", 8_030_261_248),
        ("mixtral-8x7b", 46_702_792_704),  # experts with their routers
        ("qwen2.5-7b", 7_615_616_512),  # biases of q, k and v
        ("qwen3-0.6b", 596_049_920),  # norms of q and k, tied embeddings
    ],
)
def test_to_the_last_parameter(name: str, parameters: int) -> None:
    """The element counts of the published checkpoints."""
    assert MODELS[name].num_parameters == parameters


@pytest.mark.parametrize(
    ("name", "billions"),
    [
        ("mixtral-8x7b", "12.9"), ("mixtral-8x22b", "39.2"), ("qwen3-30b-a3b", "3.4"), ("qwen3-235b-a22b", "22.2"),
        ("gpt-oss-20b", "4.2"), ("gpt-oss-120b", "5.7"), ("deepseek-v3", "37.6"), ("kimi-k2", "32.9"),
        ("deepseek-v2", "21.4"), ("deepseek-v2-lite", "2.7"),
    ],
)  # fmt: skip
def test_active_parameters_of_experts(name: str, billions: str) -> None:
    model = MODELS[name]
    assert f"{model.active_parameters / 1e9:.1f}" == billions
    assert model.active_parameters < model.num_parameters


def test_every_parameter_of_a_dense_model_is_active() -> None:
    assert all(m.active_parameters == m.num_parameters for m in MODELS.values() if not m.experts)


@pytest.mark.parametrize("name", MODELS)
def test_kv_bytes_per_token(name: str) -> None:
    assert MODELS[name].kv_bytes_per_token() == KIB_PER_TOKEN[name] * 1024


def test_kv_heads_are_divided_then_repeated() -> None:
    model = MODELS["llama-3.1-70b"]
    per_token = [model.kv_bytes_per_token(n) // 1024 for n in (1, 2, 4, 8, 16, 32)]
    assert per_token == [320, 160, 80, 40, 40, 40]


@pytest.mark.parametrize("tensor_parallel", [0, -1, 3, 24, 128])
def test_tensor_parallel_must_divide_the_heads(tensor_parallel: int) -> None:
    with pytest.raises(InputError, match="does not divide its 32 attention heads") as error:
        MODELS["llama-3.1-8b"].weight_bytes(tensor_parallel)
    assert "allowed: 1, 2, 4, 8, 16, 32" in str(error.value)


def test_tensor_parallel_must_fit_the_kv_heads() -> None:
    with pytest.raises(InputError, match="does not divide its 4 KV heads") as error:
        MODELS["qwen2.5-7b"].kv_bytes_per_token(7)
    assert "allowed: 1, 2, 4, 28" in str(error.value)


@given(st.sampled_from(list(MODELS.values())), st.data())
def test_a_rank_holds_its_share_and_what_is_repeated(model: Model, data: st.DataObject) -> None:
    ranks = data.draw(st.sampled_from(model.tensor_parallel_choices()))
    whole, part = model.weight_bytes(1), model.weight_bytes(ranks)
    routed = model.moe_layers * model.experts * model.expert_parameters
    tables = (1 if model.tie_embeddings else 2) * model.vocab * model.hidden
    rest = model.num_parameters - routed - tables
    assert whole == ceil(rest * model.dtype_bytes + routed * model.expert_bytes + tables * model.embedding_bytes)
    assert part <= whole
    assert part * ranks >= whole
    if ranks <= model.kv_heads:  # no head is repeated: norms, routers, positions and rounding remain
        assert part * ranks - whole < 0.01 * whole * ranks
    assert model.layer_parameters(ranks) <= model.layer_parameters(1)


@pytest.mark.parametrize(("width", "embeddings"), [(0.5625, 2), (1, 2), (2, 2), (4, 4)])
def test_quantisers_leave_embeddings_and_head_in_16_bits(width: float, embeddings: int) -> None:
    """Llama 3.1 8B in fp8: 7.0 GB of layers and 2.1 GB of the two tables, which its files have in bf16."""
    model = replace(MODELS["llama-3.1-8b"], dtype_bytes=width)
    tables = 2 * 128256 * 4096
    assert model.weight_bytes() == ceil((model.num_parameters - tables) * width) + tables * embeddings
    assert replace(model, tie_embeddings=True).weight_bytes() == model.weight_bytes() - tables * embeddings // 2


def test_layer_parameters_leave_out_embeddings_and_routed_experts() -> None:
    dense = MODELS["llama-3.1-8b"]
    assert dense.layer_parameters() == dense.num_parameters - 2 * dense.vocab * dense.hidden
    moe = MODELS["mixtral-8x7b"]
    routed = moe.layers * moe.experts * moe.expert_parameters
    assert moe.layer_parameters() == moe.num_parameters - 2 * moe.vocab * moe.hidden - routed


def test_find_model_names_the_nearest() -> None:
    assert find_model("gpt2") is MODELS["gpt2"]
    with pytest.raises(InputError, match=r"unknown model 'llama-3\.1-9b'") as error:
        find_model("llama-3.1-9b")
    assert "did you mean llama-3.1-8b?" in str(error.value)


@pytest.mark.parametrize(
    ("published", "own", "weights", "experts"),
    [
        ("Qwen/Qwen3-32B", "qwen3-32b", "bf16", "bf16"),
        ("qwen/qwen3-32b-fp8", "qwen3-32b", "fp8_block", "fp8_block"),
        ("nvidia/Llama-3.3-70B-Instruct-FP8", "llama-3.1-70b", "fp8", "fp8"),
        ("nvidia/Llama-3.3-70B-Instruct-FP4", "llama-3.1-70b", "nvfp4", "nvfp4"),
        ("nvidia/DeepSeek-R1-0528-FP4", "deepseek-v3", "bf16", "nvfp4"),
        ("deepseek-ai/DeepSeek-V2-Chat", "deepseek-v2", "bf16", "bf16"),
        ("deepseek-ai/DeepSeek-V3-0324", "deepseek-v3", "fp8_block", "fp8_block"),
        ("deepseek-ai/DeepSeek-V3.1-Terminus", "deepseek-v3", "fp8_block", "fp8_block"),
        ("deepseek-ai/DeepSeek-V3.2-Exp", "deepseek-v3.2", "fp8_block", "fp8_block"),
        ("Qwen/Qwen3-235B-A22B-Thinking-2507", "qwen3-235b-a22b", "bf16", "bf16"),
        ("zai-org/GLM-4.6-FP8", "glm-4.5", "fp8", "fp8"),
        ("zai-org/GLM-5-FP8", "glm-5", "fp8_block", "fp8_block"),
        ("/models/Llama-3.3-70B-Instruct-FP8/", "llama-3.1-70b", "fp8", "fp8"),
        ("unsloth/DeepSeek-R1-BF16", "deepseek-v3", "bf16", "bf16"),
        ("unsloth/gpt-oss-20b-BF16", "gpt-oss-20b", "bf16", "bf16"),
        ("kimi-k2-thinking", "kimi-k2-thinking", "bf16", "int4"),
        ("mistralai/Mistral-7B-Instruct-v0.3", "mistral-7b", "bf16", "bf16"),
        ("nvidia/NVIDIA-Nemotron-Nano-9B-v2", "nemotron-nano-9b-v2", "bf16", "bf16"),
    ],
)
def test_a_model_by_a_published_name(published: str, own: str, weights: str, experts: str) -> None:
    model = find_model(published)
    is_converted = (weights, experts) != ("bf16", "bf16") or "BF16" in published
    assert replace(model, name="") == replace(MODELS[own], name="") or is_converted
    assert (model.name, model.multiplied_in) == (own, weights)
    assert (model.experts_multiplied_in if model.expert_dtype == "auto" else model.expert_dtype) == experts


def test_every_published_name_is_found() -> None:
    """None of them is taken for another's: of DeepSeek's the number is the model, of Mistral's it is a release."""
    for name, published in HUGGING_FACE.items():
        assert find_model(published) is MODELS[name]
    for published, name in SAME_DIMENSIONS.items():
        assert find_model(published) is MODELS[name]


def test_custom_model_is_the_built_in_one() -> None:
    assert custom_model({**DIMENSIONS, "name": "llama-3.1-8b"}) == MODELS["llama-3.1-8b"]


def test_custom_model_over_a_base() -> None:
    model = custom_model({"base": "llama-3.1-8b", "kv_dtype_bytes": 1})
    assert model == replace(MODELS["llama-3.1-8b"], name="llama-3.1-8b (changed)", kv_dtype_bytes=1)
    assert model.kv_bytes_per_token() == 64 * 1024


@pytest.mark.parametrize(
    ("name", "total", "active"),
    [
        ("deepseek-v3", 671, 37),
        ("deepseek-v2", 236, 21),
        ("deepseek-v2-lite", 15.7, 2.4),
        ("kimi-k2", 1000, 32),
        ("llama-4-maverick", 400, 17),
        ("llama-4-scout", 109, 17),
        ("glm-4.5", 355, 32),
        ("glm-4.5-air", 106, 12),
        ("minimax-m2", 230, 10),
        ("qwen3-coder-480b-a35b", 480, 35),
        ("qwen3.5-397b-a17b", 397, 17),
        ("glm-5", 744, 40),
        ("nemotron-3-nano-30b-a3b", 31.6, 3.2),
    ],
)
def test_the_makers_state_as_many_parameters(name: str, total: float, active: float) -> None:
    """In billions, as in the models' papers; of the active ones they do not count the input embeddings."""
    model = MODELS[name]
    assert model.num_parameters / 1e9 == pytest.approx(total, rel=0.03)
    assert (model.active_parameters - model.vocab * model.hidden) / 1e9 == pytest.approx(
        active, rel=0.03, abs=1.0 if active >= 10 else 0.3
    )  # stated in whole billions


def test_latent_attention() -> None:
    model = custom_model(DEEPSEEK_V3)
    assert f"{model.num_parameters / 1e9:.1f}" == "671.0"
    assert model.kv_bytes_per_token(1) == model.kv_bytes_per_token(8) == 61 * (512 + 64) * 2


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"hiden": 1}, "unknown key 'hiden'"),
        ({"layers": None}, "layers must be a whole number"),
        ({"layers": 32.0}, "layers must be a whole number"),
        ({"layers": True}, "layers must be a whole number"),
        ({"layers": "32"}, "layers must be a whole number"),
        ({"layers": 0}, "layers must be at least 1"),
        ({"vocab": -1}, "vocab must be at least 1"),
        ({"positions": -1}, "positions must not be negative"),
        ({"kv_heads": 5}, r"kv_heads \(5\) must divide heads"),
        ({"dtype_bytes": 3}, "dtype_bytes must be 1"),
        ({"tie_embeddings": 1}, "tie_embeddings must be true or false"),
        ({"name": 8}, "name must be text"),
        ({"experts": 8}, "active_experts must be 1 to 8"),
        ({"experts": 8, "active_experts": 9}, "active_experts must be 1 to 8"),
        ({"active_experts": 2}, "need experts"),
        ({"experts": 8, "active_experts": 2, "dense_layers": 33, "dense_intermediate": 1}, "more than layers"),
        ({"experts": 8, "active_experts": 2, "dense_layers": 3}, "come together"),
        ({"rope_head_dim": 64}, "need kv_lora_rank"),
        ({"heads": 24}, "missing head_dim"),
        ({"base": "llama"}, "unknown model 'llama'"),
        ({"base": 3}, "base must be the name"),
    ],
)
def test_custom_model_says_what_is_wrong(change: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        custom_model({**DIMENSIONS, **change})


def test_custom_model_names_everything_that_is_missing() -> None:
    with pytest.raises(InputError, match="missing layers, kv_heads, vocab, max_model_len"):
        custom_model({"hidden": 64, "heads": 4, "intermediate": 128})
