"""A decoder in float64, written down as plainly as can be: no pages, no batch, no cache. For comparison only."""

import math

import torch
from torch import Tensor

from gpu_backend.weights import Dense, ExpertWeights, Mlp, Norm, Weights
from simulator.hardware.models import Model


def dense_logits(model: Model, weights: Weights, tokens: list[int]) -> Tensor:
    """Logits [tokens, vocab] of a sequence computed from its beginning."""
    hidden = weights.embedding[tokens].double()
    if weights.positions is not None:
        hidden = hidden + weights.positions[: len(tokens)].double()
    for layer in weights.layers:
        mixed = apply(layer.qkv, normed(hidden, layer.attention_norm))
        mixed = mixed.view(len(tokens), model.heads + 2 * model.kv_heads, model.head_dim)
        query, key = mixed[:, : model.heads], mixed[:, model.heads : model.heads + model.kv_heads]
        value = mixed[:, model.heads + model.kv_heads :]
        if layer.query_norm is not None and layer.key_norm is not None:
            query, key = scaled(query) * layer.query_norm.double(), scaled(key) * layer.key_norm.double()
        if weights.positions is None:
            query, key = roped(query), roped(key)
        hidden = hidden + apply(layer.out, attended(query, key, value))
        hidden = hidden + fed_forward(model, layer.mlp, normed(hidden, layer.mlp_norm))
    return normed(hidden, weights.norm) @ weights.head.double().T


def apply(dense: Dense, x: Tensor) -> Tensor:
    y = x @ dense.weight.double().T
    return y if dense.bias is None else y + dense.bias.double()


def scaled(x: Tensor) -> Tensor:
    return x / torch.sqrt((x * x).mean(-1, keepdim=True) + 1e-5)


def normed(x: Tensor, norm: Norm) -> Tensor:
    if norm.bias is None:
        return scaled(x) * norm.weight.double()
    centred = x - x.mean(-1, keepdim=True)
    return scaled(centred) * norm.weight.double() + norm.bias.double()


def roped(x: Tensor) -> Tensor:
    """Each pair (i, i + half) as a complex number, turned by position * 10000 ** (-2 i / head_dim)."""
    count, _, width = x.shape
    half = width // 2
    pairs = torch.complex(x[..., :half].contiguous(), x[..., half:].contiguous())
    speed = 10_000.0 ** (-2 * torch.arange(half, dtype=torch.float64) / width)
    turn = torch.polar(torch.ones(count, half, dtype=torch.float64), torch.arange(count)[:, None] * speed)
    turned = pairs * turn[:, None, :]
    return torch.cat([turned.real, turned.imag], -1)


def attended(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    count, heads, width = query.shape
    group = heads // key.shape[1]
    out = torch.empty_like(query)
    for head in range(heads):
        score = query[:, head] @ key[:, head // group].T / math.sqrt(width)
        future = torch.arange(count)[None, :] > torch.arange(count)[:, None]
        out[:, head] = score.masked_fill(future, -math.inf).softmax(-1) @ value[:, head // group]
    return out.reshape(count, heads * width)


def fed_forward(model: Model, mlp: Mlp | ExpertWeights, x: Tensor) -> Tensor:
    if isinstance(mlp, Mlp):
        return apply(mlp.down, activated(model, apply(mlp.up, x)))
    out = torch.zeros_like(x) if mlp.shared is None else fed_forward(model, mlp.shared, x)
    for token in range(len(x)):
        best = (mlp.router.double() @ x[token]).topk(model.active_experts)
        for share, expert in zip(best.values.softmax(-1), best.indices, strict=True):
            up = activated(model, mlp.up[expert].double() @ x[token])
            out[token] += share * (mlp.down[expert].double() @ up)
    return out


def activated(model: Model, x: Tensor) -> Tensor:
    if not model.gated_mlp:
        return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
    gate, value = x.chunk(2, -1)
    return gate / (1 + torch.exp(-gate)) * value
