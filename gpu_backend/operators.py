"""A decoder's operators, one at a time on made-up activations: kernel rows are measured with them.

Each is done over all layers in turn, so that weights come from where a step finds them, and not from the nearest cache.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import Tensor
from torch.nn.functional import linear

from gpu_backend.decoder import Decoder
from gpu_backend.pointwise import norm, turned
from gpu_backend.weights import ExpertWeights, Layer, Mlp
from gpu_backend.work import KVScales, StepArrays

Work = Callable[[], object]


class Operators:
    """The operators of a decoder, by their names in profiles."""

    def __init__(self, decoder: Decoder) -> None:
        self._decoder = decoder
        self._layers = decoder.weights.layers
        self._like = decoder.weights.embedding

    def of_tokens(self, tokens: int) -> dict[str, Work]:
        """Operators of a layer that depend on the number of tokens alone; each call does all layers."""
        model, add_norm = self._decoder.model, self._decoder.pointwise.add_norm
        hidden, mixed = self._made_up(tokens, model.hidden), self._made_up(tokens, model.heads * model.head_dim)
        found: dict[str, Callable[[Layer], object]] = {
            "qkv": lambda layer: self._decoder.dense(hidden, layer.qkv),
            "output_projection": lambda layer: self._decoder.dense(mixed, layer.out),
            # With the two additions to the residual stream.
            "norm": lambda layer: [add_norm(hidden, hidden, by) for by in (layer.attention_norm, layer.mlp_norm)],
        }
        if self._decoder.placing is not None:
            found["rope"] = self._place(tokens)
        elif self._decoder.rope is not None:
            query = self._made_up(tokens, model.heads, model.head_dim)
            key = self._made_up(tokens, model.kv_heads, model.head_dim)
            turn = self._decoder.rope[torch.arange(tokens, device=key.device) % len(self._decoder.rope)].unsqueeze(2)
            found["rope"] = lambda layer: (turned(query, turn), turned(key, turn))
        plain = next((layer.mlp for layer in self._layers if isinstance(layer.mlp, Mlp)), None)
        if plain is not None:
            found |= self._feed_forward(hidden, plain.up.weight.shape[0], plain.down.weight.shape[1])
        return {name: partial(self._over_layers, work) for name, work in found.items()}

    def _place(self, tokens: int) -> Callable[[Layer], object]:
        """Rope with the cache write in it, which goes to the null page."""
        decoder, rope = self._decoder, self._decoder.rope
        assert rope is not None
        mixed = self._made_up(tokens, decoder.model.heads + 2 * decoder.model.kv_heads, decoder.model.head_dim)
        number = torch.arange(tokens, device=mixed.device)
        position, slots = number % len(rope), number % decoder.pool.block_size
        return lambda layer: decoder.place(layer, mixed, position, decoder.pool.kv[0], slots)

    def _feed_forward(self, hidden: Tensor, wide: int, width: int) -> dict[str, Callable[[Layer], object]]:
        up, inner = self._made_up(len(hidden), wide), self._made_up(len(hidden), width)

        def gate_up(layer: Layer) -> object:
            return self._decoder.dense(hidden, layer.mlp.up) if isinstance(layer.mlp, Mlp) else None

        def down(layer: Layer) -> object:
            return self._decoder.dense(inner, layer.mlp.down) if isinstance(layer.mlp, Mlp) else None

        return {"gate_up": gate_up, "activation": lambda layer: self._decoder.activated(up), "down": down}

    def of_step(self, tokens: int) -> dict[str, Work]:
        """Operators that a step has once."""
        weights = self._decoder.weights
        ids = torch.arange(tokens, device=self._like.device) % self._decoder.model.vocab
        hidden = self._made_up(tokens, self._decoder.model.hidden)
        return {
            "embedding": lambda: weights.embedding.index_select(0, ids),
            "final_norm": lambda: norm(hidden, weights.norm),
        }

    def of_sampled(self, rows: int) -> dict[str, Work]:
        """Head and greedy sampler on so many rows."""
        head = self._decoder.weights.head
        hidden = self._made_up(rows, self._decoder.model.hidden)
        logits = linear(hidden, head)
        return {"lm_head": lambda: linear(hidden, head), "sampler": lambda: logits.argmax(-1)}

    def experts(self, tokens: int) -> tuple[Work, int]:
        """The routed feed-forwards of all layers, and how many experts of a layer these tokens activate (the mean)."""
        hidden = self._made_up(tokens, self._decoder.model.hidden)
        routed = [layer.mlp for layer in self._layers if isinstance(layer.mlp, ExpertWeights)]
        top = self._decoder.model.active_experts
        chosen = [linear(hidden, mlp.router).topk(top, dim=-1).indices.unique().numel() for mlp in routed]
        return lambda: [self._decoder.routed(mlp, hidden) for mlp in routed], round(sum(chosen) / len(chosen))

    def attention(self, rows: StepArrays) -> Work:
        """Attention of all layers, the cache write in it, unless rope has that."""
        model, attention = self._decoder.model, self._decoder.attention
        query = self._made_up(len(rows.token), model.heads, model.head_dim)
        both = self._made_up(len(rows.token), 2 * model.kv_heads, model.head_dim)
        key, value = both[:, : model.kv_heads], both[:, model.kv_heads :]
        prepared = attention.prepare(rows)
        if (placing := self._decoder.placing) is not None:
            return lambda: [placing.look(query, kv, prepared, scales=scales) for kv, scales in self._pages()]
        return lambda: [
            attention.attend(query, key, value, kv, prepared, scales=scales) for kv, scales in self._pages()
        ]

    def _pages(self) -> Iterator[tuple[Tensor, KVScales]]:
        """Return each layer's pages, and their scales."""
        return zip(self._decoder.pool.kv, [layer.kv_scales for layer in self._layers], strict=True)

    def _over_layers(self, work: Callable[[Layer], object]) -> None:
        for layer in self._layers:
            work(layer)

    def _made_up(self, *shape: int) -> Tensor:
        """Draw activations of the order of 1."""
        return torch.randn(shape, device=self._like.device, dtype=torch.float32).to(self._like.dtype)
