"""The time that LoRA adapters add to a step, and the memory that they take beside the model.

As vLLM 0.33 computes them (vllm/lora/punica_wrapper/punica_gpu.py): of every layer, the projections before attention,
after it, and the two of the feed-forward each start two kernels, one that shrinks the tokens to the adapters' rank and
one that expands the result and adds it. A kernel takes as long as its bytes: tokens in and out, the intermediate in
float32, and the weights of each adapter in the batch. It takes at least `KERNEL_S`. Adapters count with the rank of
their slots (`max_lora_rank`), to which smaller ones are padded. Experts have no adapters here. A step in which no
request has an adapter takes what it takes without (graphs without adapters, `cudagraph_specialize_lora`).
"""

from dataclasses import dataclass, field
from typing import NamedTuple

from simulator.errors import InputError
from simulator.hardware.gpus import Gpu
from simulator.hardware.models import Model
from simulator.timing.cost import StepShape
from simulator.timing.roofline_cost import BANDWIDTH_EFFICIENCY

KERNEL_S = 10e-6
"""Seconds of an expand kernel at up to 16 requests and rank 16 (vllm-project/vllm, pull request 32425: about 10 us
since, 14 us before); the shrink kernel is taken to last as long."""

_BYTES, _FLOAT32 = 2, 4  # of a weight or an activation, and of what lies between the two kernels


class Projection(NamedTuple):
    """One matrix product of a layer on one GPU, or `slices` of them with a common input, `outputs` wide together."""

    inputs: int
    outputs: int
    slices: int


def projections(model: Model, tensor_parallel: int) -> tuple[Projection, ...]:
    """The products of a layer that adapters change. InputError for a model whose attention has no heads of its own."""
    other = "multi-head latent attention" if model.kv_lora_rank else "a layer with a state" if model.has_states else ""
    if other:
        what = f"adapters of {model.name} are not priced: {other} has other projections"
        raise InputError(what, hint="another model; adapters are priced for heads of attention and a feed-forward")
    queries = model.heads * model.head_dim // tensor_parallel
    keys = model.local_kv_heads(tensor_parallel) * model.head_dim
    attention = (Projection(model.hidden, queries + 2 * keys, 3), Projection(queries, model.hidden, 1))
    if model.experts:
        return attention
    width, branches = model.intermediate // tensor_parallel, 2 if model.gated_mlp else 1
    return (*attention, Projection(model.hidden, branches * width, branches), Projection(width, model.hidden, 1))


@dataclass(frozen=True, slots=True)
class Loras:
    """Adapters of one rank on one kind of GPU. InputError for a model whose adapters are not priced.

    `slot_bytes` are the bytes of one adapter on each GPU: the matrices that are not divided lie on all.
    """

    model: Model
    gpu: Gpu
    tensor_parallel: int
    rank: int
    slot_bytes: int = field(init=False)
    _projections: tuple[Projection, ...] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        found = projections(self.model, self.tensor_parallel)
        weights = sum(each.slices * each.inputs + each.outputs for each in found)
        object.__setattr__(self, "_projections", found)
        object.__setattr__(self, "slot_bytes", self.model.layers * self.rank * weights * _BYTES)

    def s(self, shape: StepShape) -> float:
        """Seconds that a step of this shape spends on its adapters, their way from host memory included."""
        if not shape.lora_tokens and not shape.loaded_loras:
            return 0.0
        loading_s = shape.loaded_loras * self.slot_bytes / (self.gpu.host_link_gb_s * 1e9)
        return loading_s + (self._kernels_s(shape.lora_tokens, shape.loras) if shape.lora_tokens else 0.0)

    def _kernels_s(self, tokens: int, loras: int) -> float:
        bandwidth = self.gpu.bandwidth_gb_s * 1e9 * BANDWIDTH_EFFICIENCY
        layer_s = 0.0
        for inputs, outputs, slices in self._projections:
            between = tokens * slices * self.rank * _FLOAT32
            shrink = (tokens + loras * slices * self.rank) * inputs * _BYTES + between
            expand = (2 * tokens + loras * self.rank) * outputs * _BYTES + between
            layer_s += max(KERNEL_S, shrink / bandwidth) + max(KERNEL_S, expand / bandwidth)
        return self.model.layers * layer_s
