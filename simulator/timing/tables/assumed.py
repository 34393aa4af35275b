"""Assumed times of what tables of kernels lack: element-wise operators, the sampler, links."""

from collections.abc import Sequence
from dataclasses import dataclass

from simulator.hardware.gpus import Gpu
from simulator.hardware.models import Model
from simulator.timing.formula_cost import ACTIVATION_BYTES, BANDWIDTH_EFFICIENCY, LOGIT_BYTES
from simulator.timing.profile.surface import Curve, scaled

LAUNCH_US = 2.0
"""One small kernel inside a CUDA graph; LLMServingSim measured 2.4 to 2.8 us of each on RTX PRO 6000 (vLLM 0.19)."""
L2_GB_S = 5500.0
"""What operands that the L2 cache holds, since the kernel before has just written them, are read and written at: norms,
rope, activations and samplers of up to 100 MB on RTX PRO 6000 (LLMServingSim), and keys on H100 (aiconfigurator)."""
SAMPLER_US = 25.0  # of a greedy sampler for one row, on RTX PRO 6000 and RTX 4090 alike (LLMServingSim)
MOST_TOKENS = 8192.0
MOST_ROWS = 1024.0
NVLINK_US, PCIE_US = 5.0, 20.0
"""Microseconds of one all-reduce where neither is known, as in `simulator.timing.formula_cost`."""
LINKS = {"rtx-pro-6000": (16.0, 20.0), "rtx-4090": (16.0, 20.0)}
"""GB/s and microseconds of one all-reduce where it was not measured: nominal figures that LLMServingSim's own
configuration of these servers states (peer-to-peer over PCIe)."""


def elementwise(model: Model, gpu: Gpu, ranks: int) -> dict[str, Curve]:
    """Curves over tokens of a layer's element-wise operators: its norms, rope, cache write, activation.

    Queries and keys that are normalised take one more. Latent attention holds its own rope and cache write.
    """
    wide = model.intermediate
    if model.experts:  # the routed ones apply it within their own kernels
        with_experts = model.moe_layers * model.shared_experts * model.intermediate
        wide = round((with_experts + model.dense_layers * model.dense_intermediate) / model.layers)
    width = (3 if model.gated_mlp else 2) * -(-wide // ranks) * ACTIVATION_BYTES
    norms = 8 * model.hidden * ACTIVATION_BYTES
    found = {"norm": _curve(gpu, 2 * LAUNCH_US, norms, norms / 4)}  # two, in place, one after the other
    if model.sublayers < 2 * model.layers:
        found["norm"] = scaled(found["norm"], model.sublayers / (2 * model.layers))
    if model.has_states:  # the split of the projection, and the gated norm
        values = 3 * -(-model.linear_value_heads // ranks) * model.value_head_dim * ACTIVATION_BYTES
        gated = _curve(gpu, 2 * LAUNCH_US, 2 * values, values)
        found["gated_norm"] = scaled(gated, model.state_layers / model.layers)
    if not model.kv_lora_rank:
        each = model.heads // ranks + 2 * model.local_kv_heads(ranks)
        heads = 2 * each * model.head_dim * ACTIVATION_BYTES
        found["rope"] = _curve(gpu, LAUNCH_US, heads, heads / 2)
        found["cache_write"] = _curve(gpu, LAUNCH_US, heads / 2, heads / 2)
        if model.qk_norm or model.qk_norm_whole:
            launches = 3 if model.qk_norm_whole and ranks > 1 else 1  # squares, then the norm; what is sent between
            found["qk_norm"] = _curve(gpu, launches * LAUNCH_US, heads, heads / 2)
        if model.attention_gate:
            found["attention_gate"] = _curve(gpu, LAUNCH_US, heads, heads / 2)
        if model.has_states:
            for name in found.keys() & {"rope", "cache_write", "qk_norm", "attention_gate"}:
                found[name] = scaled(found[name], model.attention_layers / model.layers)
    if not width:
        return found
    activation = _curve(gpu, LAUNCH_US, width, width)
    is_apart = model.sublayers < 2 * model.layers and not model.experts
    return found | {"activation": scaled(activation, model.dense_share) if is_apart else activation}


def sampler(model: Model, gpu: Gpu) -> Curve:
    """The sampler over rows of logits."""
    return _curve(gpu, SAMPLER_US, LOGIT_BYTES * model.vocab, LOGIT_BYTES * model.vocab, MOST_ROWS)


PRODUCTS = 7
"""Kernels of a layer beside element-wise ones: four products, attention in two parts, the logits once a pass."""
ROUTING = 5  # of a layer with experts: router, its top, order, their activation, sum
AROUND_A_PASS = 7
"""Kernels of a head's pass around its layer: embeddings, two norms, joining, the choice's number in the model's
vocabulary, positions, slots (`_generate_draft` in vllm/v1/worker/gpu/spec_decode/target_dependent_ar, 0.33)."""


@dataclass(frozen=True, slots=True)
class SmallKernels:
    """What a head's pass takes beside its products, inside a CUDA graph: launches, element-wise kernels, sampling."""

    launches_s: float
    by_token: Sequence[Curve]  # microseconds
    by_row: Curve

    def s(self, tokens: int, rows: int) -> float:
        """Seconds of a pass over so many tokens that samples so many rows."""
        return self.launches_s + 1e-6 * (sum([curve.at(tokens) for curve in self.by_token]) + self.by_row.at(rows))


def small_kernels(head: Model, gpu: Gpu, ranks: int) -> SmallKernels:
    """The small kernels of a pass of a head, which is one layer."""
    launches = AROUND_A_PASS + PRODUCTS + (ROUTING if head.experts else 0)
    return SmallKernels(1e-6 * LAUNCH_US * launches, [*elementwise(head, gpu, ranks).values()], sampler(head, gpu))


def nominal_all_reduce(model: Model, ranks: int, gb_s: float, latency_us: float) -> Curve:
    """A step's all-reduces over tokens, as rings over a link: two a layer of tokens x hidden."""
    moved = 2 * (ranks - 1) / ranks * model.hidden * ACTIVATION_BYTES
    per_token = 2 * model.layers * moved / (gb_s * 1e3)
    return _line(2 * model.layers * latency_us, per_token)


def _curve(gpu: Gpu, first_us: float, moved: float, held: float, last: float = MOST_TOKENS) -> Curve:
    """A line over counts of which each moves so many bytes: to and from the L2 cache as long as that holds them.

    `held` are the bytes of the operands themselves. At twice what the cache holds all come from memory.
    """
    memory_us, cache_us = moved / (gpu.bandwidth_gb_s * BANDWIDTH_EFFICIENCY * 1e3), moved / (L2_GB_S * 1e3)
    most = gpu.l2_mib * 2**20 / held
    if most < 1.0 or cache_us >= memory_us:
        return _line(first_us, memory_us, last)
    if most >= last:
        return _line(first_us, cache_us, last)
    counts = [1.0, most, *([2.0 * most] if 2.0 * most < last else []), last]
    us = [first_us + count * _between(count / most, cache_us, memory_us) for count in counts]
    return Curve(tuple(round(count, 2) for count in counts), tuple(round(each, 4) for each in us), _short(memory_us))


def _between(full: float, cache_us: float, memory_us: float) -> float:
    """Microseconds a count where the operands are so many times the cache."""
    return cache_us + (memory_us - cache_us) * min(1.0, max(0.0, full - 1.0))


def _line(first_us: float, per_count: float, last: float = MOST_TOKENS) -> Curve:
    slope = _short(per_count)
    return Curve((1.0, last), (round(first_us + slope, 4), round(first_us + slope * last, 4)), slope)


def _short(value: float) -> float:
    return float(f"{value:.6g}")
