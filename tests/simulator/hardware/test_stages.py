"""Stages of a pipeline: vLLM's split of the layers, and what each stage holds."""

import pytest

from simulator.errors import InputError
from simulator.hardware.gpus import find_gpu
from simulator.hardware.kv import MemorySettings, kv_table
from simulator.hardware.models import MODELS, find_model
from simulator.hardware.stages import layers_of_stages, pipeline_figures, pipeline_kv, stage_memories, stages_of


@pytest.mark.parametrize(
    ("layers", "stages", "split"),
    [  # as vLLM 0.33's get_pp_indices(layers, rank, stages) gives them
        (80, 4, [20, 20, 20, 20]),
        (61, 4, [15, 15, 16, 15]),
        (62, 4, [15, 16, 16, 15]),
        (63, 4, [16, 16, 16, 15]),
        (36, 8, [4, 4, 4, 5, 5, 5, 5, 4]),
        (27, 2, [14, 13]),
        (7, 7, [1] * 7),
        (5, 1, [5]),
    ],
)
def test_layers_are_split_as_vllm_splits_them(layers: int, stages: int, split: list[int]) -> None:
    assert layers_of_stages(layers, stages) == split


def test_more_stages_than_layers_are_refused() -> None:
    with pytest.raises(InputError, match="13 stages cannot share 12 layers"):
        layers_of_stages(12, 13)


@pytest.mark.parametrize("name", ["llama-3.1-70b", "deepseek-v3", "mixtral-8x7b", "qwen3-8b", "gpt2"])
@pytest.mark.parametrize("stages", [2, 3, 4])
def test_the_stages_are_the_whole_model(name: str, stages: int) -> None:
    model = find_model(name)
    parts = stages_of(model, stages)
    assert sum(part.model.layers for part in parts) == model.layers
    assert sum(part.model.dense_layers for part in parts) == model.dense_layers
    assert sum(part.model.kv_bytes_per_token() for part in parts) == model.kv_bytes_per_token()
    whole = sum(memory.budget().weights for memory in stage_memories(MemorySettings(model, find_gpu("b200")), stages))
    norms = (stages - 1) * model.hidden * (2 if model.biases else 1) * model.dtype_bytes  # each part counts a last one
    copy = model.vocab * model.hidden * model.embedding_bytes if model.tie_embeddings else 0  # on the first and last
    assert whole == pytest.approx(model.weight_bytes() + norms + copy, abs=stages)


def test_layers_that_keep_different_things_are_refused() -> None:
    with pytest.raises(
        InputError, match="gpt-oss-120b: layers that keep different things cannot be combined with a pipeline"
    ):
        stages_of(MODELS["gpt-oss-120b"], 2)


def test_the_stage_with_the_fewest_blocks_decides() -> None:
    memories = stage_memories(MemorySettings(MODELS["llama-3.1-70b"], find_gpu("h100"), 1), 4)
    caches = [memory.kv_cache() for memory in memories]
    kv = pipeline_kv(memories)
    assert kv.num_gpu_blocks == min(cache.num_gpu_blocks for cache in caches) == caches[-1].num_gpu_blocks
    assert caches[1].num_gpu_blocks > caches[0].num_gpu_blocks > caches[-1].num_gpu_blocks  # embedding; head, sampler
    assert pipeline_kv(memories, 777).num_gpu_blocks == 777


def test_a_stage_that_does_not_fit_is_named() -> None:
    with pytest.raises(InputError, match=r"stage 0 of 2 \(40 layers\): llama-3.1-70b needs 65.7 GiB"):
        pipeline_kv(stage_memories(MemorySettings(MODELS["llama-3.1-70b"], find_gpu("l40s"), 1), 2))


def test_the_table_has_a_line_for_each_stage() -> None:
    figures = pipeline_figures(MemorySettings(MODELS["llama-3.1-70b"], find_gpu("h100"), 2), stages=4)
    assert [each["layers"] for each in figures["stages"]] == [20] * 4
    assert figures["num_gpu_blocks"] == min(each["num_gpu_blocks"] for each in figures["stages"])
    text = kv_table(figures)
    assert text.startswith("llama-3.1-70b on 8 x h100: 70.55 billion parameters")
    assert "per GPU in the stage of 4 with the fewest blocks" in text
