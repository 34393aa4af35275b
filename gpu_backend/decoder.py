"""A decoder over a paged KV cache: Llama's shape and its kin, GPT-2's, mixtures of experts.

Pre-norm layers: norm, grouped-query attention with rope (or learned positions), residual; norm, feed-forward (gated or
not, or routed to experts), residual. One call computes all tokens of a step together; each layer writes the step's keys
and values into their pages before attention reads them, as a request may share a page that is filled in the same step.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import gelu, grouped_mm, layer_norm, linear, rms_norm, silu

from gpu_backend.pool import PagedPool
from gpu_backend.weights import Dense, Experts, Layer, Mlp, Norm, Weights
from gpu_backend.work import Attention, StepArrays
from simulator.hardware.models import Model

NORM_EPS = 1e-5


@dataclass(frozen=True, slots=True)
class Inputs:
    """A step's arrays on the device."""

    token: Tensor  # [T]
    position: Tensor  # [T]
    sampled: Tensor  # [samples], tokens whose logits are wanted
    attention: object


class Decoder:
    """A model with its weights, its pages and its attention.

    `reduce` sums what several processes have of one layer (`gpu_backend.parallel`); None: there is one process.
    """

    def __init__(
        self,
        model: Model,
        weights: Weights,
        pool: PagedPool,
        attention: Attention,
        reduce: Callable[[Tensor], Tensor] | None = None,
    ) -> None:
        self.model, self.weights, self.pool = model, weights, pool
        self.attention = attention
        self.rope = None if model.positions else _rope_table(model, weights)
        self._reduce = reduce

    def prepare(self, rows: StepArrays) -> Inputs:
        """Bring what a step needs to the device."""
        device = self.weights.device
        # Only a finished request that computes on in its slot can come to the end of the positions.
        position = np.minimum(rows.position, self.model.max_model_len - 1)
        token, place, sampled = [torch.from_numpy(a).to(device) for a in (rows.token, position, rows.sampled)]
        return Inputs(token, place, sampled, self.attention.prepare(rows))

    def logits(self, inputs: Inputs) -> Tensor:
        """Compute the step: logits [samples, vocab] of the tokens that `inputs.sampled` names."""
        with torch.inference_mode():
            return self._logits(inputs)

    def _logits(self, inputs: Inputs) -> Tensor:
        weights = self.weights
        hidden = weights.embedding.index_select(0, inputs.token)
        turn = None
        if weights.positions is not None:
            hidden = hidden + weights.positions.index_select(0, inputs.position)
        elif self.rope is not None:
            turn = self.rope.index_select(0, inputs.position).unsqueeze(2)
        for layer, kv in zip(weights.layers, self.pool.kv, strict=True):
            hidden = hidden + self._whole(self._attend(layer, kv, hidden, turn, inputs))
            normed = norm(hidden, layer.mlp_norm, weights.norm_eps)
            hidden = hidden + self._whole(self._feed_forward(layer.mlp, normed))
        return linear(norm(hidden.index_select(0, inputs.sampled), weights.norm, weights.norm_eps), weights.head)

    def _whole(self, part: Tensor) -> Tensor:
        return part if self._reduce is None else self._reduce(part)

    def sampled(self, inputs: Inputs) -> Tensor:
        """As `logits`. Greedy sampling is part of a step; its tokens are dropped, as they follow from the logits."""
        with torch.inference_mode():
            logits = self._logits(inputs)
            logits.argmax(-1)
            return logits

    def _attend(self, layer: Layer, kv: Tensor, hidden: Tensor, turn: Tensor | None, inputs: Inputs) -> Tensor:
        model, eps = self.model, self.weights.norm_eps
        mixed = dense(norm(hidden, layer.attention_norm, eps), layer.qkv).view(len(hidden), -1, model.head_dim)
        query, key, value = mixed.split((model.heads, model.kv_heads, model.kv_heads), dim=1)
        if layer.query_norm is not None and layer.key_norm is not None:
            query = rms_norm(query, (model.head_dim,), layer.query_norm, eps)
            key = rms_norm(key, (model.head_dim,), layer.key_norm, eps)
        if turn is not None:
            query, key = turned(query, turn), turned(key, turn)
        out = self.attention.attend(query.contiguous(), key, value, kv, inputs.attention)
        return dense(out.view(len(hidden), -1), layer.out)

    def _feed_forward(self, mlp: Mlp | Experts, x: Tensor) -> Tensor:
        if isinstance(mlp, Experts):
            return self.routed(mlp, x)
        return dense(self.activated(dense(x, mlp.up)), mlp.down)

    def activated(self, up: Tensor) -> Tensor:
        """SwiGLU of gate and value side by side, or GELU."""
        if not self.model.gated_mlp:
            return gelu(up, approximate="tanh")
        gate, value = up.chunk(2, dim=-1)
        return silu(gate) * value

    def routed(self, experts: Experts, x: Tensor) -> Tensor:
        """Each token's `active_experts` best experts, weighted by the softmax over those chosen.

        All experts are one grouped product over the tokens in their order: the host need not know how many each has.
        """
        score, chosen = linear(x, experts.router).float().topk(self.model.active_experts, dim=-1)
        share = score.softmax(-1).to(x.dtype)
        out = torch.zeros_like(x) if experts.shared is None else self._feed_forward(experts.shared, x)
        order = chosen.flatten().argsort(stable=True)  # pairs of token and expert, by expert
        token = order // self.model.active_experts
        all_of_them = torch.arange(self.model.experts, device=x.device)
        ends = torch.searchsorted(chosen.flatten()[order], all_of_them, right=True).to(torch.int32)
        up = self.activated(grouped_mm(x.index_select(0, token), experts.up.transpose(1, 2), offs=ends))
        down = grouped_mm(up, experts.down.transpose(1, 2), offs=ends)
        gained = torch.empty_like(down)
        gained[order] = down * share.flatten().index_select(0, order).unsqueeze(1)
        return out + gained.view(len(x), self.model.active_experts, -1).sum(1)


def dense(x: Tensor, by: Dense) -> Tensor:
    """x @ weight.T + bias."""
    return linear(x, by.weight, by.bias)


def norm(x: Tensor, by: Norm, eps: float = NORM_EPS) -> Tensor:
    """RMSNorm, or LayerNorm where it has a bias."""
    if by.bias is None:
        return rms_norm(x, (x.shape[-1],), by.weight, eps)
    return layer_norm(x, (x.shape[-1],), by.weight, by.bias, eps)


def _rope_table(model: Model, weights: Weights) -> Tensor:
    """[max_model_len, 2, head_dim / 2]: cosines and sines of the angles position / base ** (2 i / head_dim)."""
    half = torch.arange(0, model.head_dim, 2, dtype=torch.float64) / model.head_dim
    angle = torch.outer(torch.arange(model.max_model_len, dtype=torch.float64), weights.rope_base**-half)
    return torch.stack([angle.cos(), angle.sin()], dim=1).to(weights.embedding)


def turned(x: Tensor, turn: Tensor) -> Tensor:
    """Pairs (i, i + head_dim / 2) turned by their angle: [T, heads, head_dim]; `turn` is [T, 2, 1, head_dim / 2]."""
    left, right = x.chunk(2, dim=-1)
    cos, sin = turn[:, 0], turn[:, 1]
    return torch.cat([left * cos - right * sin, right * cos + left * sin], dim=-1)
