"""Small operators of a layer: residual and norm, rope and cache write, activation.

`torch` computes them operator by operator, on any device; `triton` each in one kernel, as inference servers do
(`gpu_backend.pointwise_kernels`): launched one by one, a layer's small operators take longer than its matrix products
at a batch of one.
"""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import torch
from torch import Tensor
from torch.nn.functional import layer_norm, rms_norm, silu

from gpu_backend.fp8 import quantised_rows
from gpu_backend.weights import Layer, Norm

NORM_EPS = 1e-5


class Pointwise(Protocol):
    """The operators of one model on one device. Tensors are [tokens, width]."""

    def add_norm(self, hidden: Tensor, part: Tensor, by: Norm) -> tuple[Tensor, Tensor]:
        """The residual stream with `part` added, and the norm of that."""

    def gated(self, up: Tensor) -> Tensor:
        """SwiGLU: silu of the first half of a row times the second."""

    def quantised(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """`gpu_backend.fp8.quantised_rows`: in e4m3, and a scale [tokens, 1]."""


@runtime_checkable
class Placing(Pointwise, Protocol):
    """`Pointwise` that also puts keys and values into the pages; without it attention does so itself."""

    def place(self, mixed: Tensor, layer: Layer, rope: Tensor, position: Tensor, kv: Tensor, slots: Tensor) -> Tensor:
        """Queries, normed and turned; the keys, so treated too, and the values go to their slots of the pages.

        `mixed` [tokens, heads + 2 kv_heads, head_dim] are queries, keys and values; `rope` [positions, 2, head_dim / 2]
        cosines and sines; `position` [tokens]; `kv` one layer's pages, in fp8 scaled by the layer's `kv_scales`;
        `slots` [tokens], negative for nowhere.
        """


class TorchPointwise:
    """`Pointwise` by torch's operators."""

    def __init__(self, eps: float = NORM_EPS) -> None:
        self._eps = eps

    def add_norm(self, hidden: Tensor, part: Tensor, by: Norm) -> tuple[Tensor, Tensor]:
        total = hidden + part
        return total, norm(total, by, self._eps)

    def gated(self, up: Tensor) -> Tensor:
        gate, value = up.chunk(2, dim=-1)
        return silu(gate) * value

    def quantised(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return quantised_rows(x)


def norm(x: Tensor, by: Norm, eps: float = NORM_EPS) -> Tensor:
    """RMSNorm, or LayerNorm where it has a bias."""
    if by.bias is None:
        return rms_norm(x, (x.shape[-1],), by.weight, eps)
    return layer_norm(x, (x.shape[-1],), by.weight, by.bias, eps)


def normed_heads(x: Tensor, weight: Tensor | None, eps: float) -> Tensor:
    """RMSNorm over each head, where the model has it: [tokens, heads, head_dim]."""
    return x if weight is None else rms_norm(x, (x.shape[-1],), weight, eps)


def turned(x: Tensor, turn: Tensor) -> Tensor:
    """Pairs (i, i + head_dim / 2) turned by their angle: [T, heads, head_dim]; `turn` is [T, 2, 1, head_dim / 2]."""
    left, right = x.chunk(2, dim=-1)
    cos, sin = turn[:, 0], turn[:, 1]
    return torch.cat([left * cos - right * sin, right * cos + left * sin], dim=-1)
