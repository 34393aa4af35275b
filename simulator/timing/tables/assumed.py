"""Assumed times of what tables of kernels lack: element-wise operators, the sampler, links."""

from __future__ import annotations

from simulator.hardware.gpus import Gpu
from simulator.hardware.models import Model
from simulator.timing.profile.surface import Curve

LAUNCH_US = 2.0
"""One small kernel inside a CUDA graph; LLMServingSim measured 2.4 to 2.8 us of each on RTX PRO 6000 (vLLM 0.19)."""

EFFICIENCY = 0.85
"""Of the datasheet's bandwidth, as in `simulator.timing.roofline`."""

ACTIVATION_BYTES = 2
SAMPLER_US = 25.0
"""Of a greedy sampler for one row, on RTX PRO 6000 and RTX 4090 alike (LLMServingSim)."""
LOGIT_BYTES = 10
MOST_TOKENS = 8192.0
MOST_ROWS = 1024.0

NVLINK_US, PCIE_US = 5.0, 20.0
"""Microseconds of one all-reduce where neither is known, as in `simulator.timing.roofline`."""

LINKS = {"rtx-pro-6000": (16.0, 20.0), "rtx-4090": (16.0, 20.0)}
"""GB/s and microseconds of one all-reduce where it was not measured: nominal figures that LLMServingSim's own
configuration of these servers states (peer-to-peer over PCIe)."""


def elementwise(model: Model, gpu: Gpu, ranks: int) -> dict[str, Curve]:
    """Curves over tokens of a layer's element-wise operators: two norms, rope, cache write, activation.

    Rope and cache write of latent attention are measured with it, and not among them.
    """
    per_byte = 1e6 / (gpu.bandwidth_gb_s * 1e9 * EFFICIENCY)
    wide = model.intermediate
    if model.experts:  # the routed ones apply it within their own kernels
        with_experts = model.moe_layers * model.shared_experts * model.intermediate
        wide = round((with_experts + model.dense_layers * model.dense_intermediate) / model.layers)
    width = (3 if model.gated_mlp else 2) * -(-wide // ranks)
    norms = 8 * model.hidden * ACTIVATION_BYTES * per_byte
    found = {"norm": _line(2 * LAUNCH_US, norms)}
    if not model.kv_lora_rank:
        each = model.heads // ranks + 2 * model.local_kv_heads(ranks)
        heads = 2 * each * model.head_dim * ACTIVATION_BYTES * per_byte
        found |= {"rope": _line(LAUNCH_US, heads), "cache_write": _line(LAUNCH_US, heads / 2)}
    return found | ({"activation": _line(LAUNCH_US, width * ACTIVATION_BYTES * per_byte)} if width else {})


def sampler(model: Model, gpu: Gpu) -> Curve:
    """The sampler over rows of logits."""
    per_byte = 1e6 / (gpu.bandwidth_gb_s * 1e9 * EFFICIENCY)
    return _line(SAMPLER_US, LOGIT_BYTES * model.vocab * per_byte, MOST_ROWS)


def nominal_all_reduce(model: Model, ranks: int, gb_s: float, latency_us: float) -> Curve:
    """A step's all-reduces over tokens, as rings over a link: two a layer of tokens x hidden."""
    moved = 2 * (ranks - 1) / ranks * model.hidden * ACTIVATION_BYTES
    per_token = 2 * model.layers * moved / (gb_s * 1e3)
    return _line(2 * model.layers * latency_us, per_token)


def _line(first_us: float, per_count: float, last: float = MOST_TOKENS) -> Curve:
    slope = float(f"{per_count:.6g}")
    return Curve((1.0, last), (round(first_us + slope, 4), round(first_us + slope * last, 4)), slope)
