"""The stages of a pipeline: which layers each computes, what it holds, and the KV cache that fits on all of them.

As in vLLM 0.33: `get_pp_indices` (vllm/distributed/utils.py:198) gives each stage as many layers; the rest go one each
to the stages before the last, from the back. A partition (its VLLM_PP_LAYER_PARTITION) gives the layers by hand. The
first holds the embedding table, the last the head. A block has its KV of a stage's layers on that stage; the number of
blocks is that of the stage with the fewest (vllm/v1/core/kv_cache_planning.py).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from simulator.errors import InputError
from simulator.goes_with import KV_GROUPS, PIPELINE, between
from simulator.hardware.kv import GIB, KVCache, MemorySettings, kv_figures
from simulator.hardware.models import Model


@dataclass(frozen=True, slots=True)
class Stage:
    """A stage: `model` has its layers alone, and no vocabulary but on the last. It computes from layer `first` on.

    `table_parameters` are those of an embedding table that it holds and does not multiply by.
    """

    model: Model
    first: int
    of_layers: int
    table_parameters: int = 0

    @property
    def is_first(self) -> bool:
        return self.first == 0

    @property
    def is_last(self) -> bool:
        return self.first + self.model.layers == self.of_layers

    @property
    def share(self) -> float:
        """Its part of the layers."""
        return self.model.layers / self.of_layers


def layers_of_stages(layers: int, stages: int, partition: Sequence[int] | None = None) -> list[int]:
    """Layers of each stage, in order; `partition` gives them. InputError where they do not come out even."""
    if partition is not None:
        if len(partition) != stages or sum(partition) != layers or min(partition) < 1:
            given = ",".join(map(str, partition))
            what = f"the partition {given} has {len(partition)} stages and {sum(partition)} layers"
            alike = ",".join(map(str, layers_of_stages(layers, stages)))
            raise InputError(f"{what}, the model {layers} layers for {stages} stages", hint=f"left out: {alike}")
        return list(partition)
    if stages > layers:
        raise InputError(f"{stages} stages cannot share {layers} layers", hint=f"at most {layers}")
    even, left = divmod(layers, stages)
    return [even + (stages - 1 - left <= stage < stages - 1) for stage in range(stages)]


def stages_of(model: Model, stages: int, partition: Sequence[int] | None = None) -> list[Stage]:
    """The stages of a model, whose layers without experts come first.

    InputError where there are fewer layers than stages, or the layers keep different things of a request.
    """
    if model.has_kv_groups:
        what = f"{model.name}: {between(KV_GROUPS, PIPELINE).message}"
        raise InputError(what, hint="pipeline_parallel: 1, or a model whose layers are alike")
    found: list[Stage] = []
    first = 0
    for layers in layers_of_stages(model.layers, stages, partition):
        end = first + layers
        is_first, is_last = first == 0, end == model.layers
        part = replace(
            model,
            layers=layers,
            dense_layers=max(0, min(end, model.dense_layers) - first),
            vocab=model.vocab if is_last else 0,
            tie_embeddings=True,  # one table, the head's
            positions=model.positions if is_first else 0,
            num_nextn_predict_layers=model.num_nextn_predict_layers if is_last else 0,
        )
        table = model.vocab if is_first and not is_last else 0
        found.append(Stage(part, first, model.layers, table * model.hidden))
        first = end
    return found


def stage_memories(of: MemorySettings, stages: int, partition: Sequence[int] | None = None) -> list[MemorySettings]:
    """What decides the KV cache on the GPUs of each stage."""
    return [
        replace(
            of,
            model=stage.model,
            drafter_weight_bytes=round(
                stage.share * of.drafter_weight_bytes  # adapters
                + stage.table_parameters / of.tensor_parallel * of.model.embedding_bytes
            ),
        )
        for stage in stages_of(of.model, stages, partition)
    ]


def pipeline_kv(memories: Sequence[MemorySettings], num_gpu_blocks: int | None = None) -> KVCache:
    """The KV cache of a pipeline: the blocks of the stage with the fewest, bytes of a block where it has the most.

    InputError where a stage does not fit.
    """
    caches = []
    for number, memory in enumerate(memories):
        try:
            caches.append(memory.kv_cache(0.0, num_gpu_blocks))
        except InputError as error:
            what = f"stage {number} of {len(memories)} ({memory.model.layers} layers): {error.message}"
            raise InputError(what, hint="more stages or tensor_parallel, or a GPU with more memory") from None
    fewest = min(cache.num_gpu_blocks for cache in caches)
    return KVCache(fewest, caches[0].block_size, 0, max(cache.bytes_per_block for cache in caches))


def pipeline_figures(
    of: MemorySettings,
    context_tokens: int | None = None,
    max_model_len: int | None = None,
    *,
    stages: int,
    caches: bool = True,
) -> dict[str, Any]:
    """`kv_figures` of the stage that has the fewest blocks, with the layers, weights and KV of every stage."""
    memories = stage_memories(of, stages)
    kv = pipeline_kv(memories)
    tightest = min(memories, key=lambda each: each.kv_cache().num_gpu_blocks)
    figures = kv_figures(tightest, context_tokens, max_model_len, caches=caches)
    return figures | {
        "parameters": of.model.num_parameters,
        "pipeline_parallel": stages,
        "kv_gib": kv.num_gpu_blocks * tightest.bytes_per_block / GIB,
        "stages": [
            {
                "layers": each.model.layers,
                "weights_gib": each.budget().weights / GIB,
                "kv_gib": kv.num_gpu_blocks * each.bytes_per_block / GIB,
                "num_gpu_blocks": each.kv_cache().num_gpu_blocks,
            }
            for each in memories
        ],
    }
