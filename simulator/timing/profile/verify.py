"""Attention of a step that verifies drafts: several queries of a request read its keys in one kernel.

The kernel is that of steps with prompt chunks, whatever it computes beside: a batch with more than one query a
sequence does not go to the kernel for decodes. Where both were measured in one kernel, a request with its drafts is
looked up as a chunk beside the other decodes; where they were measured apart, decodes cost as much as they do beside
prompts (`simulator.timing.tables.decodes_beside`). The queries of a KV head's group fill a tile of `TILE` rows, which
reads the keys once and is computed whole: only more tiles take longer. Latent attention has one KV head for all.
"""

from simulator.timing.cost import StepShape
from simulator.timing.profile.counts import TILE
from simulator.timing.profile.joint import joint_us
from simulator.timing.profile.profile_schema import Profile
from simulator.timing.profile.step import Attention, PrefillTable


def rows_of_group(profile: Profile) -> int:
    """Query heads that share a KV head on a GPU; 1 where the profile does not say."""
    dimensions = profile.document.get("dimensions") or {}
    heads = int(dimensions.get("heads", 1)) // profile.tensor_parallel
    kv_heads = 1 if dimensions.get("kv_lora_rank") else int(dimensions.get("kv_heads", 1)) // profile.tensor_parallel
    return max(heads, 1) // max(kv_heads, 1)


def verify_us(attention: Attention, shape: StepShape, group: int) -> float:
    """Microseconds of a layer's attention in a step whose decodes verify drafts, equal contexts assumed."""
    seqs, mean = shape.decode_seqs, shape.decode_context / shape.decode_seqs
    queries = 1.0 + shape.draft_tokens / seqs
    launch_us = attention.launch_us
    decodes_us = max(0.0, attention.beside * (attention.decode.us(seqs, mean) - launch_us))
    if shape.prefill_tokens:
        us = joint_us(attention, shape)
    elif isinstance(attention.prompt, PrefillTable):
        us = launch_us + decodes_us
    else:
        us = joint_us(attention, _as_chunk(shape, queries, mean))
    return us + decodes_us * (_tiles(group * queries) / _tiles(group) - 1.0)


def _as_chunk(shape: StepShape, queries: float, mean: float) -> StepShape:
    """The step with one of its requests as a chunk behind the rest of its context."""
    tokens, context = round(queries), round(mean)
    pairs = tokens * (context - tokens) + tokens * (tokens + 1) // 2
    return StepShape(
        shape.decode_seqs - 1, shape.decode_context - context, 1, tokens, context, pairs, prefill_longest=context
    )


def _tiles(rows: float) -> int:
    return -(-round(rows) // TILE)
