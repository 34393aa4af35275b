"""Layers of several kinds: what they keep, the groups they form, and what of their dimensions is refused."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.errors import InputError
from simulator.hardware.gpus import GPUS
from simulator.hardware.kv import MemorySettings, kv_figures, kv_table
from simulator.hardware.kv_groups import LayerCache, kv_groups, layer_caches
from simulator.hardware.kv_plan import KVSettings, NoRoomError, plan_kv
from simulator.hardware.models import MODELS, custom_model

GIB = 2**30


@pytest.mark.parametrize(
    ("name", "ranks", "caches", "blocks", "tokens", "concurrency"),
    [  # vLLM 0.33's own planning for 60 GiB a GPU, 8,192 tokens a step and two batches in flight
        ("gpt-oss-120b", 1, True, 109226, 1551920, 11.840),
        ("gemma-3-27b", 1, True, 49152, 437488, 3.338),
        ("qwen3-next-80b-a3b", 2, True, 9102, 5131257, 19.574),
        ("qwen3-next-80b-a3b", 2, False, 9637, 5208828, 19.870),
        ("nemotron-nano-9b-v2", 1, True, 2997, 3246469, 24.769),
    ],
)
def test_caches_are_as_large_as_in_vllm(
    name: str, ranks: int, caches: bool, blocks: int, tokens: int, concurrency: float
) -> None:
    model = MODELS[name]
    settings = KVSettings(
        model.max_model_len, 16, 8192, 2, caches, state_alignment=64 if "G" in model.layer_types else None
    )
    plan = plan_kv(layer_caches(model, ranks), [60 * GIB], settings)
    assert (plan.num_blocks, plan.capacity_tokens) == (blocks, tokens)
    assert plan.max_concurrency == pytest.approx(concurrency, abs=5e-4)


def test_figures_of_a_model_with_windows() -> None:
    """A window costs a request that decodes at most the blocks that it overlaps."""
    of = MemorySettings(MODELS["gpt-oss-120b"], GPUS["h200"])
    figures = kv_figures(of, 8192)
    blocks = 8192 // 16 + (128 // 16 + 1)
    assert figures["requests_that_fit"] == {8192: (figures["num_gpu_blocks"] - 1) // blocks}
    assert [group["kind"] for group in figures["kv_groups"]] == ["window", "full"]
    text = kv_table(figures)
    assert "window of 128               18 layers in blocks of 16" in text
    assert "x 131,072 tokens" in text
    with pytest.raises(InputError, match="max_model_len 200000 is longer"):
        kv_figures(of, max_model_len=200_000)
    with pytest.raises(NoRoomError, match="max_model_len 131072 needs"):
        MemorySettings(MODELS["gemma-3-27b"], GPUS["h100"], gpu_memory_utilization=0.75).plan()


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"layer_types": "W*"}, "kind W (sliding_attention) need sliding_window"),
        ({"layer_types": "C*"}, "need attention_chunk_size"),
        ({"layer_types": "GGG*"}, "need linear_value_heads"),
        ({"layer_types": "M*", "linear_value_heads": 8}, "layers with a state need linear_key_heads"),
        ({"layer_types": "f*"}, "layer_types has 'f'"),
        ({"layer_types": "-"}, "no layer with attention"),
        ({"layer_types": "*", "sliding_window": 128}, "sliding_window without a layer that has it"),
        ({"layer_types": "W*", "sliding_window": 64, "full_attention_layers": 3}, "full_attention_layers is 3"),
        ({"layer_types": 3}, "layer_types must be text"),
    ],
)
def test_kinds_of_layers_that_do_not_fit_are_refused(changes: dict[str, object], said: str) -> None:
    with pytest.raises(InputError, match="model: ") as caught:
        custom_model({"base": "llama-3.1-8b", **changes})
    assert said in str(caught.value)


def test_settings_that_do_not_go_together_are_refused() -> None:
    states = layer_caches(MODELS["qwen3-next-80b-a3b"], 1)
    with pytest.raises(InputError, match="must divide the blocks"):
        plan_kv(states, [60 * GIB], KVSettings(32768, prefix_match_unit=24))
    with pytest.raises(InputError, match="with one KV group"):
        plan_kv(layer_caches(MODELS["llama-3.1-8b"], 1), [60 * GIB], KVSettings(32768, prefix_match_unit=8))
    with pytest.raises(InputError, match="all layers must keep the same"):
        plan_kv(states, [60 * GIB], KVSettings(32768, disable_hybrid_kv_cache_manager=True))
    with pytest.raises(InputError, match="32 heads of qwen3-next-80b-a3b's linear attention"):
        layer_caches(replace(MODELS["qwen3-next-80b-a3b"], heads=48, kv_heads=3), 3)


CACHES = [
    LayerCache("full", 16, 2, 256),
    LayerCache("full", 16, 4, 256),
    LayerCache("window", 16, 2, 256, window=128),
    LayerCache("window", 16, 3, 256, window=64),
    LayerCache("mamba", 16, state_bytes=4000),
]


@given(st.lists(st.sampled_from(CACHES), min_size=1, max_size=30), st.sampled_from(["LBNHC", "BLHNC"]))
def test_each_layer_is_in_one_group(caches: list[LayerCache], layout: str) -> None:
    groups = kv_groups(dict(enumerate(caches)), layout=layout)  # type: ignore[arg-type] # one of the layouts
    assert sorted(number for group in groups for number in group.layers) == list(range(len(caches)))
    if layout == "LBNHC" and len(groups) > 1:
        assert len({cache.page_bytes for group in groups for cache in group.layers.values()}) == 1
