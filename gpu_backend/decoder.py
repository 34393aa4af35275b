"""A decoder over a paged KV cache: Llama's shape and its kin, GPT-2's, mixtures of experts.

Pre-norm layers: norm, grouped-query attention with rope (or learned positions), residual; norm, feed-forward (gated or
not, or routed to experts), residual. One call computes all tokens of a step together; each layer writes the step's keys
and values into their pages before attention reads them, as a request may share a page that is filled in the same step.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional
from torch.nn.functional import gelu, linear

from gpu_backend.fp8 import product
from gpu_backend.pointwise import Placing, Pointwise, TorchPointwise, norm, normed_heads, turned
from gpu_backend.pool import PagedPool
from gpu_backend.weights import Dense, ExpertWeights, Layer, Mlp, Weights
from gpu_backend.work import UNSCALED, AttentionImpl, KVScales, StepArrays
from simulator.hardware.models import Model


@dataclass(frozen=True, slots=True)
class Inputs:
    """A step's arrays on the device."""

    token: Tensor  # [T]
    position: Tensor  # [T]
    sampled: Tensor  # [samples], tokens whose logits are wanted
    attention: object


@runtime_checkable
class Looking(AttentionImpl, Protocol):
    """Attention that takes keys and values from the pages: what it prepares has `slots` [tokens], where they go."""

    def look(self, query: Tensor, kv: Tensor, prepared: Any, *, scales: KVScales = UNSCALED) -> Tensor:
        """Attention of `query` to the pages, into which the step's own keys and values were put."""


class Decoder:
    """A model with its weights, its pages, its attention and what lies between (`pointwise`).

    `reduce` sums what several processes have of one layer (`gpu_backend.parallel`); None: there is one process.
    """

    def __init__(
        self,
        model: Model,
        weights: Weights,
        pool: PagedPool,
        attention: AttentionImpl,
        reduce: Callable[[Tensor], Tensor] | None = None,
        pointwise: Pointwise | None = None,
    ) -> None:
        self.model, self.weights, self.pool = model, weights, pool
        self.attention = attention
        self.rope = None if model.positions else _rope_table(model, weights)
        self.pointwise = pointwise or TorchPointwise(weights.norm_eps)
        self._reduce = reduce
        self.placing: Looking | None = None  # attention that has keys and values put into the pages by `pointwise`
        self._placer: Placing | None = None
        if self.rope is not None and isinstance(self.pointwise, Placing) and isinstance(attention, Looking):
            self.placing, self._placer = attention, self.pointwise

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
        weights, add_norm = self.weights, self.pointwise.add_norm
        hidden = weights.embedding.index_select(0, inputs.token)
        turn = None
        if weights.positions is not None:
            hidden = hidden + weights.positions.index_select(0, inputs.position)
        elif self.rope is not None and self.placing is None:
            turn = self.rope.index_select(0, inputs.position).unsqueeze(2)
        normed = norm(hidden, weights.layers[0].attention_norm, weights.norm_eps)
        following = [layer.attention_norm for layer in weights.layers[1:]]
        for number, (layer, kv) in enumerate(zip(weights.layers, self.pool.kv, strict=True)):
            part = self._whole(self._attend(layer, kv, normed, turn, inputs))
            hidden, normed = add_norm(hidden, part, layer.mlp_norm)
            part = self._whole(self._feed_forward(layer.mlp, normed))
            if number < len(following):
                hidden, normed = add_norm(hidden, part, following[number])
            else:
                hidden = hidden + part
        return linear(norm(hidden.index_select(0, inputs.sampled), weights.norm, weights.norm_eps), weights.head)

    def _whole(self, part: Tensor) -> Tensor:
        return part if self._reduce is None else self._reduce(part)

    def sampled(self, inputs: Inputs) -> Tensor:
        """Compute the step like `logits`, and sample greedily. The tokens are dropped: they follow from the logits."""
        with torch.inference_mode():
            logits = self._logits(inputs)
            logits.argmax(-1)
            return logits

    def _attend(self, layer: Layer, kv: Tensor, normed: Tensor, turn: Tensor | None, inputs: Inputs) -> Tensor:
        model, eps = self.model, self.weights.norm_eps
        mixed = self.dense(normed, layer.qkv).view(len(normed), -1, model.head_dim)
        if self.placing is not None:
            prepared: Any = inputs.attention
            query = self.place(layer, mixed, inputs.position, kv, prepared.slots)
            out = self.placing.look(query, kv, prepared, scales=layer.kv_scales)
        else:
            query, key, value = mixed.split((model.heads, model.kv_heads, model.kv_heads), dim=1)
            query, key = normed_heads(query, layer.query_norm, eps), normed_heads(key, layer.key_norm, eps)
            if turn is not None:
                query, key = turned(query, turn), turned(key, turn)
            out = self.attention.attend(query.contiguous(), key, value, kv, inputs.attention, scales=layer.kv_scales)
        return self.dense(out.view(len(normed), -1), layer.out)

    def place(self, layer: Layer, mixed: Tensor, position: Tensor, kv: Tensor, slots: Tensor) -> Tensor:
        """Put the step's keys and values into the pages; return queries ready for attention. Only where `placing`."""
        assert self.rope is not None
        assert self._placer is not None
        return self._placer.place(mixed, layer, self.rope, position, kv, slots)

    def _feed_forward(self, mlp: Mlp | ExpertWeights, x: Tensor) -> Tensor:
        if isinstance(mlp, ExpertWeights):
            return self.routed(mlp, x)
        return self.dense(self.activated(self.dense(x, mlp.up)), mlp.down)

    def dense(self, x: Tensor, by: Dense) -> Tensor:
        """x @ weight.T + bias; where the weight is in fp8, so are the activations, scaled token by token."""
        if by.scale is None:
            return linear(x, by.weight, by.bias)
        rows, scale = self.pointwise.quantised(x)
        out = product(rows, scale, by.weight, by.scale, x.dtype)
        return out if by.bias is None else out + by.bias

    def activated(self, up: Tensor) -> Tensor:
        """SwiGLU of gate and value side by side, or GELU."""
        return self.pointwise.gated(up) if self.model.gated_mlp else gelu(up, approximate="tanh")

    def routed(self, experts: ExpertWeights, x: Tensor) -> Tensor:
        """Compute each token's `active_experts` best experts, weighted by the softmax over their scores.

        All experts are one grouped product over the tokens in their order: the host need not know how many each has.
        """
        score, chosen = linear(x, experts.router).float().topk(self.model.active_experts, dim=-1)
        share = score.softmax(-1).to(x.dtype)
        out = torch.zeros_like(x) if experts.shared is None else self._feed_forward(experts.shared, x)
        order = chosen.flatten().argsort(stable=True)  # pairs of token and expert, by expert
        token = order // self.model.active_experts
        all_of_them = torch.arange(self.model.experts, device=x.device)
        ends = torch.searchsorted(chosen.flatten()[order], all_of_them, right=True).to(torch.int32)
        grouped = functional.grouped_mm  # looked up here: only mixtures need a torch that has it
        up = self.activated(grouped(x.index_select(0, token), experts.up.transpose(1, 2), offs=ends))
        down = grouped(up, experts.down.transpose(1, 2), offs=ends)
        gained = torch.empty_like(down)
        gained[order] = down * share.flatten().index_select(0, order).unsqueeze(1)
        return out + gained.view(len(x), self.model.active_experts, -1).sum(1)


def _rope_table(model: Model, weights: Weights) -> Tensor:
    """[max_model_len, 2, head_dim / 2]: cosines and sines of the angles position / base ** (2 i / head_dim)."""
    half = torch.arange(0, model.head_dim, 2, dtype=torch.float64) / model.head_dim
    angle = torch.outer(torch.arange(model.max_model_len, dtype=torch.float64), weights.rope_base**-half)
    return torch.stack([angle.cos(), angle.sin()], dim=1).to(weights.embedding)
