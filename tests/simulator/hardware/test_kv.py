import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.errors import InputError
from simulator.hardware.gpus import GPUS, Gpu
from simulator.hardware.kv import (
    GIB,
    KVCache,
    MemorySettings,
    activation_bytes,
    how_many_fit,
    kv_figures,
    kv_table,
    swap_s_per_block,
)
from simulator.hardware.models import MODELS, Model
from tests.shared_data import shared

LLAMA = MODELS["llama-3.1-8b"]
H200 = GPUS["h200"]


def test_blocks_by_hand() -> None:
    budget = int(0.9 * round(139.8 * 2**30))
    activations = 256 * 128256 * 30
    other = 2**28
    left = budget - 2 * 8_030_261_248 - activations - other
    assert MemorySettings(LLAMA, H200).kv_cache() == KVCache(left // (16 * 131072), 16, 0, 16 * 131072)


def test_blocks_of_a_real_server() -> None:
    """vLLM 0.19, Llama-3.1-8B on an RTX 4090: the server's own count, from its log."""
    folder = shared("measured/held_out_inputs/llmservingsim_vllm/rtx4090_llama31_8b_tp1")
    meta = json.loads((folder / "meta.json").read_text())
    gpu = replace(GPUS["rtx-4090"], memory_gib=meta["hardware"]["device_total_memory_bytes"] / GIB)
    cache, limits = meta["kv_cache"], meta["engine_kwargs"]
    kv = MemorySettings(
        LLAMA, gpu, 1, cache["gpu_memory_utilization"], cache["block_size"], limits["max_num_batched_tokens"]
    ).kv_cache()
    assert kv.num_gpu_blocks == pytest.approx(cache["num_gpu_blocks"], rel=0.01)
    assert gpu.memory_gib == pytest.approx(GPUS["rtx-4090"].memory_gib, rel=0.001)


@pytest.mark.parametrize(
    ("model", "gpu", "memory_gib", "utilization", "max_num_batched_tokens", "tokens"),
    [
        # Public start-up logs: a vLLM of version 1 ("Available KV cache memory: 56.21 GiB") ...
        ("llama-3.1-8b", "h100", 79.25, 0.92, 8192, 460_496),
        # ... version 0 ("the rest of the memory reserved for KV Cache is 54.93GiB") ...
        ("llama-3.1-8b", "h100", 79.14, 0.90, 8192, int(54.93 * 2**30) // 131072),
        # ... and vLLM's pull request 2031, 7351 blocks.
        ("llama-2-7b", "a100-80gb", 79.15, 0.90, 4096, 7351 * 16),
    ],
)
def test_tokens_of_published_logs(
    model: str, gpu: str, memory_gib: float, utilization: float, max_num_batched_tokens: int, tokens: int
) -> None:
    device = replace(GPUS[gpu], memory_gib=memory_gib)
    kv = MemorySettings(MODELS[model], device, 1, utilization, 16, max_num_batched_tokens).kv_cache()
    assert kv.tokens == pytest.approx(tokens, rel=0.02)


def test_usable_leaves_out_the_null_block() -> None:
    kv = KVCache(num_gpu_blocks=100, block_size=16, num_host_blocks=0, bytes_per_block=1)
    assert kv.usable == 99
    assert kv.tokens == 99 * 16


def test_a_known_count_replaces_the_arithmetic() -> None:
    kv = MemorySettings(LLAMA, GPUS["l4"]).kv_cache(num_gpu_blocks=2588)
    assert kv == KVCache(2588, 16, 0, 2 * 2**20)
    assert (
        MemorySettings(MODELS["llama-3.1-70b"], H200).kv_cache(num_gpu_blocks=10).num_gpu_blocks == 10
    )  # fits, by the server's word


def test_swap_space_becomes_host_blocks() -> None:
    assert MemorySettings(LLAMA, H200).kv_cache(swap_space_gib=4).num_host_blocks == 4 * GIB // (16 * 131072)
    assert MemorySettings(LLAMA, H200, 2).kv_cache(swap_space_gib=4).num_host_blocks == 4 * GIB // (16 * 65536)
    assert MemorySettings(LLAMA, H200).kv_cache(swap_space_gib=0.001).num_host_blocks == 0


def test_swap_takes_the_host_link() -> None:
    assert swap_s_per_block(MemorySettings(LLAMA, H200).kv_cache(), H200) == 16 * 131072 / 55e9
    assert swap_s_per_block(MemorySettings(LLAMA, H200, 4).kv_cache(), H200) == 16 * 32768 / 55e9


@given(
    st.sampled_from(list(MODELS.values())),
    st.sampled_from([1, 2, 4]),
    st.floats(0.3, 1.0),
    st.sampled_from([1, 8, 16, 32, 128]),
    st.integers(1, 32768),
)
def test_the_cache_is_what_remains(
    model: Model, ranks: int, utilization: float, block_size: int, max_num_batched_tokens: int
) -> None:
    if ranks not in model.tensor_parallel_choices():
        return
    split = MemorySettings(model, H200, ranks, utilization, block_size, max_num_batched_tokens).budget()
    try:
        kv = MemorySettings(model, H200, ranks, utilization, block_size, max_num_batched_tokens).kv_cache()
    except InputError:
        assert split.kv < 2 * block_size * model.kv_bytes_per_token(ranks)
        return
    assert kv.num_gpu_blocks * kv.bytes_per_block <= split.kv < (kv.num_gpu_blocks + 1) * kv.bytes_per_block
    more = MemorySettings(
        model, replace(H200, memory_gib=150.0), ranks, utilization, block_size, max_num_batched_tokens
    ).kv_cache()
    assert more.num_gpu_blocks >= kv.num_gpu_blocks


@given(st.sampled_from(list(MODELS.values())), st.integers(1, 100_000), st.integers(1, 1000))
def test_activations_grow_with_the_step(model: Model, tokens: int, more: int) -> None:
    assert 0 < activation_bytes(model, 1, tokens) <= activation_bytes(model, 1, tokens + more)
    if 2 in model.tensor_parallel_choices():
        assert activation_bytes(model, 2, tokens) <= activation_bytes(model, 1, tokens)


def test_activations_of_a_long_step_are_those_of_a_layer() -> None:
    wide = 2 * 4096 + 4096 + 3 * 14336  # residual and hidden states, and in the feed-forward its input and three rows
    assert activation_bytes(LLAMA, 1, 65536) == 65536 * wide * 2


@pytest.mark.parametrize(("context", "each"), [(1, 1), (16, 1), (17, 2), (1000, 63)])
def test_how_many_fit_counts_whole_blocks(context: int, each: int) -> None:
    kv = KVCache(num_gpu_blocks=1001, block_size=16, num_host_blocks=0, bytes_per_block=1)
    assert how_many_fit(kv, context) == 1000 // each


def test_weights_that_do_not_fit() -> None:
    with pytest.raises(InputError) as error:
        MemorySettings(MODELS["llama-3.1-70b"], GPUS["h100"]).kv_cache()
    assert str(error.value) == (
        "llama-3.1-70b needs 131.4 GiB of weights on each of 1 GPU(s), h100 has 71.3 GiB (0.9 x 79.2) for the server\n"
        "  use tensor_parallel >= 2"
    )


def test_the_advised_tensor_parallel_fits_and_no_smaller_one_does() -> None:
    model, gpu = MODELS["llama-3.1-405b"], GPUS["h100"]
    with pytest.raises(InputError, match=r"378\.0 GiB of weights on each of 2") as error:
        MemorySettings(model, gpu, 2).kv_cache()
    assert error.value.hint == "use tensor_parallel >= 16"
    MemorySettings(model, gpu, 16).kv_cache()
    with pytest.raises(InputError):
        MemorySettings(model, gpu, 8).kv_cache()


def test_weights_that_fit_without_room_for_a_cache() -> None:
    gpu = replace(GPUS["l4"], memory_gib=17.0)
    with pytest.raises(InputError, match="no room for KV cache") as error:
        MemorySettings(LLAMA, gpu).kv_cache()
    assert error.value.hint == "use tensor_parallel >= 2"


def test_a_gpu_that_no_tensor_parallel_helps() -> None:
    tiny = replace(GPUS["l4"], memory_gib=1.0)
    with pytest.raises(InputError) as error:
        MemorySettings(LLAMA, tiny).kv_cache()
    assert error.value.hint == "no number of GPUs makes it fit: take one with more memory"
    with pytest.raises(InputError) as error:
        MemorySettings(MODELS["qwen3.5-397b-a17b"], GPUS["rtx-4090"]).kv_cache()
    assert error.value.hint is not None
    assert "about 64 GPUs: tensor_parallel 32, pipeline_parallel 2;" in error.value.hint


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"gpu_memory_utilization": 0.0}, "gpu_memory_utilization must be above 0"),
        ({"gpu_memory_utilization": 1.01}, "gpu_memory_utilization must be above 0 and at most 1"),
        ({"gpu_memory_utilization": float("nan")}, "gpu_memory_utilization must be above 0"),
        ({"block_size": 0}, "block_size must be at least 1"),
        ({"max_num_batched_tokens": 0}, "max_num_batched_tokens must be at least 1"),
        ({"swap_space_gib": -1.0}, "swap_space_gib must not be negative"),
        ({"num_gpu_blocks": 1}, "num_gpu_blocks must be at least 2"),
        ({"tensor_parallel": 3}, "does not divide its 32 attention heads"),
    ],
)
def test_values_out_of_range(arguments: dict[str, float], message: str) -> None:
    late = {name: value for name, value in arguments.items() if name in ("swap_space_gib", "num_gpu_blocks")}
    early = {name: value for name, value in arguments.items() if name not in late}
    with pytest.raises(InputError, match=message):
        MemorySettings(LLAMA, H200, **early).kv_cache(**late)  # type: ignore[arg-type] # wrong on purpose


def test_figures_agree_with_the_cache() -> None:
    figures = kv_figures(MemorySettings(MODELS["llama-3.1-70b"], GPUS["h100"], 4), 4000)
    kv = MemorySettings(MODELS["llama-3.1-70b"], GPUS["h100"], 4).kv_cache()
    assert figures["num_gpu_blocks"] == kv.num_gpu_blocks
    assert figures["kv_tokens"] == kv.tokens
    assert figures["requests_that_fit"] == {4000: kv.usable // 250}
    parts = figures["weights_gib"] + figures["activations_gib"] + figures["other_gib"] + figures["kv_gib"]
    assert 0 <= figures["budget_gib"] - parts < kv.bytes_per_block / GIB
    json.dumps(figures)


def test_figures_stop_at_the_models_longest_context() -> None:
    assert list(kv_figures(MemorySettings(MODELS["gpt2"], H200))["requests_that_fit"]) == [512, 1024]
    assert list(kv_figures(MemorySettings(replace(LLAMA, max_model_len=300), H200))["requests_that_fit"]) == [300]
    with pytest.raises(InputError, match="context 1025 is longer than gpt2 can read"):
        kv_figures(MemorySettings(MODELS["gpt2"], H200), context_tokens=1025)
    with pytest.raises(InputError, match="context must be at least 1 token"):
        kv_figures(MemorySettings(MODELS["gpt2"], H200), context_tokens=0)


def test_table() -> None:
    gpu = Gpu("toy", 40.0, 1000, 100, 25, 32, None, "made up")
    text = kv_table(kv_figures(MemorySettings(LLAMA, gpu, 2), 10_000))
    assert text == "\n".join(
        [
            "llama-3.1-8b on 2 x toy: 8.03 billion parameters",
            "",
            "per GPU",
            "  memory                   40.00 GiB",
            "  for the server           36.00 GiB  0.9 of it",
            "  weights                   7.48 GiB",
            "  activations               0.92 GiB  at max_num_batched_tokens 2048",
            "  graphs and other          0.65 GiB",
            "  KV cache                 26.95 GiB",
            "  KV per token             64.00 KiB",
            "  blocks of 16            27,600",
            "  tokens                 441,584",
            "",
            "requests that fit at the same time",
            "       context     requests",
            "        10,000           44",
        ]
    )


def test_sglangs_share_is_of_weights_and_kv_alone() -> None:
    """Activations lie in the rest: with the same share there is room for more blocks than under vLLM."""
    vllm = MemorySettings(LLAMA, H200, gpu_memory_utilization=0.85)
    sglang = replace(vllm, mem_fraction_static=0.85)
    split = sglang.budget()
    assert split.activations == 0
    assert split.weights == vllm.budget().weights
    assert split.kv == pytest.approx(0.85 * (H200.memory_bytes - vllm.budget().other) - split.weights, abs=1)
    assert sglang.kv_cache().num_gpu_blocks > vllm.kv_cache().num_gpu_blocks
