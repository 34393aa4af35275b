"""The cost of decodes in a step that computes prompts too, where both were measured apart only.

One kernel computes such a step. FlashAttention 2 computes each query head on its own there, where a kernel for decodes
alone packs the query heads of a KV head into one tile: the keys are read again for each, mostly from the L2 cache. So
decodes take longer beside prompts, by a power of the query heads for each KV head. RTX 4090 and RTX PRO 6000, where
both were measured together (LLMServingSim, vLLM 0.19), give the same power each by itself; it is fitted by
`docs.writers.accuracy.beside`, which says how far one card is predicted from the
other. FlashAttention 3 packs whatever the step holds
(`should_pack_gqa` in hopper/heuristics.h): there the two add up. So they do with FlashInfer, which vLLM takes on B200
to GB300, and for an fp8 cache where FlashAttention 2 would have to read it: prompts and decodes are split, and each has
a kernel of its own (vllm/v1/attention/backends/flashinfer.py).
"""

PACKED = ("h100", "h200", "h20")  # GPUs on which vLLM computes attention with FlashAttention 3
APART = ("b200", "b300", "gb200", "gb300")  # GPUs on which it does so with FlashInfer
POWER = 0.48


def beside_factor(gpu: str, heads: int, kv_heads: int, power: float = POWER, kv: str = "bf16") -> float:
    """How many times as long decodes of these heads, less their launch, take beside prompts as alone."""
    return 1.0 if gpu in (*PACKED, *APART) or kv == "fp8" else float((heads / kv_heads) ** power)
