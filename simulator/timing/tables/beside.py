"""What decodes cost in a step that computes prompts too, where both were measured apart only.

One kernel computes such a step. FlashAttention 2 computes each query head on its own there, where a kernel for decodes
alone packs the query heads of a KV head into one tile: the keys are read again for each, mostly from the L2 cache. So
decodes take longer beside prompts, by a power of the query heads for each KV head. RTX 4090 and RTX PRO 6000, where
both were measured together (LLMServingSim, vLLM 0.19), give the same power each by itself; `calibration.beside` fits it
and says how far one card is predicted from the other. FlashAttention 3 packs whatever the step holds
(`should_pack_gqa` in hopper/heuristics.h): there the two add up.
"""

from __future__ import annotations

PACKED = ("h100", "h200", "h20")
"""GPUs on which vLLM computes attention with FlashAttention 3."""

POWER = 0.48


def beside_factor(gpu: str, heads: int, kv_heads: int, power: float = POWER) -> float:
    """How many times as long decodes of these heads take beside prompts as alone, their launch apart."""
    return 1.0 if gpu in PACKED else float((heads / kv_heads) ** power)
