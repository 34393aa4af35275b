"""Tensor parallelism: each process holds its share of heads and feed-forward columns, and sums are all-reduced.

Megatron's cut (Shoeybi et al., 2019): query, key, value, gate and up by their outputs, attention's output and down by
their inputs, so that a layer has two all-reduces. Embedding and head are whole everywhere. The processes talk through
torch.distributed: gloo between CPUs, NCCL between GPUs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor, distributed

from gpu_backend.fp8 import as_bytes
from gpu_backend.weights import Dense, ExpertWeights, Layer, Mlp, Weights
from simulator.errors import InputError
from simulator.hardware.models import Model


def all_reduce(tensor: Tensor) -> Tensor:
    """Sum a tensor over all processes of the group, in place."""
    distributed.all_reduce(tensor)
    return tensor


def local_model(model: Model, size: int) -> Model:
    """The dimensions of one share. Raises InputError where heads or columns do not come out even."""
    inner = [model.intermediate, model.dense_intermediate]
    if any(count % size for count in (model.heads, model.kv_heads, *inner)):
        what = f"{model.name} has {model.heads} heads, {model.kv_heads} KV heads and {model.intermediate} columns"
        raise InputError(f"{what}: not evenly shared by {size}", hint="another tensor_parallel")
    return replace(
        model,
        heads=model.heads // size,
        kv_heads=model.kv_heads // size,
        intermediate=inner[0] // size,
        dense_intermediate=inner[1] // size,
    )


def local_weights(model: Model, weights: Weights, rank: int, size: int) -> Weights:
    """Cut share number `rank` out of a whole model's weights."""
    return replace(weights, layers=tuple([_layer(model, layer, rank, size) for layer in weights.layers]))


def _layer(model: Model, layer: Layer, rank: int, size: int) -> Layer:
    heads = [model.heads * model.head_dim, *[model.kv_heads * model.head_dim] * 2]
    mlp = layer.mlp
    return replace(
        layer,
        qkv=_by_outputs(layer.qkv, heads, rank, size),
        out=_by_inputs(layer.out, rank, size),
        mlp=_experts(model, mlp, rank, size) if isinstance(mlp, ExpertWeights) else _mlp(model, mlp, rank, size),
    )


def _mlp(model: Model, mlp: Mlp, rank: int, size: int) -> Mlp:
    parts = 2 if model.gated_mlp else 1
    widths = [mlp.up.weight.shape[0] // parts] * parts
    return Mlp(_by_outputs(mlp.up, widths, rank, size), _by_inputs(mlp.down, rank, size))


def _experts(model: Model, experts: ExpertWeights, rank: int, size: int) -> ExpertWeights:
    """Cut a share of every expert; the router stays whole."""
    parts = 2 if model.gated_mlp else 1
    up = torch.cat([_share(part, 1, rank, size) for part in experts.up.chunk(parts, dim=1)], dim=1)
    shared = None if experts.shared is None else _mlp(model, experts.shared, rank, size)
    return ExpertWeights(experts.router, up, _share(experts.down, 2, rank, size), shared)


def _by_outputs(dense: Dense, widths: Sequence[int], rank: int, size: int) -> Dense:
    """Cut a share of the rows of each matrix in a stack."""

    def mine(whole: Tensor | None) -> Tensor | None:
        if whole is None or len(whole) == 1:  # nothing, or one scale for all
            return whole
        parts = [_share(part, 0, rank, size) for part in as_bytes(whole).split(list(widths))]
        return torch.cat(parts).view(whole.dtype)

    weight = mine(dense.weight)
    assert weight is not None
    return Dense(weight, mine(dense.bias), mine(dense.scale))


def _by_inputs(dense: Dense, rank: int, size: int) -> Dense:
    """Cut a share of the columns; the first process alone adds the bias."""
    return Dense(_share(dense.weight, 1, rank, size), dense.bias if rank == 0 else None, dense.scale)


def _share(tensor: Tensor, dim: int, rank: int, size: int) -> Tensor:
    return tensor.chunk(size, dim=dim)[rank].contiguous()
