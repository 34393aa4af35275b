"""Least work of multi-head latent attention: its products, and the least time that a GPU can take for them."""

from collections.abc import Mapping

import numpy as np

from simulator.hardware.gpus import Gpu
from simulator.timing.profile.surface import Array
from simulator.timing.roofline_cost import ACTIVATION_BYTES, BANDWIDTH_EFFICIENCY, GEMM_EFFICIENCY, latent_flops
from simulator.timing.tables.products import WEIGHT_BYTES

Dimensions = Mapping[str, int]
"""hidden, q_lora_rank, kv_lora_rank, rope_head_dim, head_dim: of values and of queries without rope."""
KV_BYTES = {"bf16": 2, "fp8": 1}
ABSORBED_BYTES = 2  # of a weight of W_UK and W_UV, which vLLM keeps in bf16


def projections(of: Dimensions, heads: int) -> dict[str, tuple[int, int]]:
    """(n, k) of the products of a module that depend on the width of the model or of the query's bottleneck."""
    latent, query = of["kv_lora_rank"] + of["rope_head_dim"], of["head_dim"] + of["rope_head_dim"]
    out = (of["hidden"], heads * of["head_dim"])
    if not of["q_lora_rank"]:
        return {"q": (heads * query, of["hidden"]), "kv_a": (latent, of["hidden"]), "output_projection": out}
    return {
        "qkv_a": (of["q_lora_rank"] + latent, of["hidden"]),
        "q_b": (heads * query, of["q_lora_rank"]),
        "output_projection": out,
    }


def up_projection(of: Dimensions) -> int:
    """Weights for each head that turn a latent into its keys and values, or absorb them."""
    return 2 * of["head_dim"] * of["kv_lora_rank"]


def decode_least_us(
    of: Dimensions, gpu: Gpu, dtype: str, kv_dtype: str, heads: Array, seqs: Array, context: Array
) -> Array:
    """The least microseconds of a module for decodes: weights and latents read once, operations at the peaks."""
    weights, up = _weights(of, heads), up_projection(of) * heads
    keys = seqs * context
    peak = gpu.tflops("fp8" if kv_dtype == "fp8" else "bf16")
    key_flops, _ = _flops(of)
    flops = 2 * weights * seqs / gpu.tflops(dtype) + 2 * up * seqs / gpu.bf16_tflops + key_flops * heads * keys / peak
    width = (of["kv_lora_rank"] + of["rope_head_dim"]) * KV_BYTES[kv_dtype]
    moved = WEIGHT_BYTES[dtype] * weights + ABSORBED_BYTES * up + width * keys
    return np.asarray(np.maximum(flops / 1e6, moved / (gpu.bandwidth_gb_s * 1e3)))


def prompt_least_us(
    of: Dimensions, gpu: Gpu, dtype: str, kv_dtype: str, heads: Array, chunks: Array, each: Array
) -> Array:
    """The least time of a module for fresh prompts, whose attention is computed in bf16."""
    del kv_dtype  # a fresh prompt reads no cache
    weights = _weights(of, heads) + up_projection(of) * heads
    pairs = chunks * 0.5 * each * (each + 1.0)
    _, pair_flops = _flops(of)
    flops = 2 * weights * chunks * each / gpu.tflops(dtype) + pair_flops * heads * pairs / gpu.bf16_tflops
    return np.asarray(np.maximum(flops / 1e6, WEIGHT_BYTES[dtype] * weights / (gpu.bandwidth_gb_s * 1e3)))


def up_projection_us(of: Dimensions, gpu: Gpu, dtype: str, heads: int) -> float:
    """Microseconds to turn the latent of one cached token into keys and values of all heads again.

    A chunk of a prompt does it for all tokens before it (vLLM, `MLACommonImpl._compute_prefill_context`): a product,
    whose results are written, and its keys put together with the rope key: read and written once more.
    """
    own, rope = of["head_dim"], of["rope_head_dim"]
    moved = ACTIVATION_BYTES * heads * (2 * own + own + (own + rope))
    flops = 2 * up_projection(of) * heads
    flops_us = gpu.tflops(dtype) * 1e6 * GEMM_EFFICIENCY
    return flops / flops_us + moved / (gpu.bandwidth_gb_s * 1e3 * BANDWIDTH_EFFICIENCY)


def _weights(of: Dimensions, heads: Array) -> Array:
    one, two = (sum(n * k for n, k in projections(of, count).values()) for count in (1, 2))
    return np.asarray(one + (two - one) * (heads - 1.0))  # linear in the heads


def _flops(of: Dimensions) -> tuple[int, int]:
    return latent_flops(of["kv_lora_rank"], of["rope_head_dim"], of["head_dim"])
