"""A decoder over a paged KV cache, Llama's shape and its kin, GPT-2's, mixtures of experts; and the cache itself."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional
from torch.nn.functional import gelu, layer_norm, linear, rms_norm, silu

from gpu_backend.weights import (
    E4M3,
    LARGEST,
    Dense,
    ExpertWeights,
    Layer,
    Mlp,
    Norm,
    Weights,
    as_bytes,
    product,
    quantised_rows,
)
from gpu_backend.work import UNSCALED, AttentionImpl, KVScales, StepArrays, Swap, Work
from simulator.hardware.models import Model
from simulator.memory.blocks import BlockTables

# The paged KV cache itself: pages on the device, pages on the host, and copies between them.

_STAGED_BYTES = 256 * 2**20  # of a copy between device and host, at a time


class PagedPool:
    """Keys and values of `num_blocks` pages and the null page 0, for every layer; and `num_host_blocks` on the host.

    `kv` is [layer, block, 2, kv_head, block_size, head_dim] of `dtype`, keys before values. The host's pages are whole,
    all layers together, and pinned where the device is a CUDA one: each is one copy.
    """

    def __init__(
        self, model: Model, num_blocks: int, block_size: int, num_host_blocks: int, device: str, dtype: torch.dtype
    ) -> None:
        page = (2, model.kv_heads, block_size, model.head_dim)
        self.block_size = block_size
        self.kv = torch.zeros((model.layers, num_blocks + 1, *page), device=device, dtype=dtype)
        self.host = torch.zeros((num_host_blocks, model.layers, *page), dtype=dtype, pin_memory=device == "cuda")
        self._is_cuda = device == "cuda"
        self._moved = as_bytes(self.kv)
        self._staged = max(1, _STAGED_BYTES // max(1, self.bytes_per_block))

    @property
    def num_blocks(self) -> int:
        """Pages of the device, the null page not counted."""
        return int(self.kv.shape[1]) - 1

    @property
    def bytes_per_block(self) -> int:
        """Bytes of a page: all layers."""
        return int(self.kv[:, 0].numel() * self.kv.element_size())

    def swap_out(self, swap: Swap) -> None:
        """Copy pages of the device to pages of the host."""
        self.moving_out(swap)()

    def swap_in(self, swap: Swap) -> None:
        """Copy pages of the host to pages of the device."""
        self.moving_in(swap)()

    def moving_out(self, swap: Swap) -> Callable[[], None]:
        """Prepare the copies of `swap_out`: the call waits for nothing, and may be done over."""
        parts = [(self._ids(source), target) for source, target in self._in_parts(swap)]

        def move() -> None:
            for source, target in parts:
                staged = self._moved.index_select(1, source).transpose(0, 1).contiguous()
                for place, page in enumerate(target):
                    as_bytes(self.host[page]).copy_(staged[place], non_blocking=self._is_cuda)

        return move

    def moving_in(self, swap: Swap) -> Callable[[], None]:
        """Prepare the copies of `swap_in`, likewise."""
        parts = [(source, self._ids(target)) for source, target in self._in_parts(swap)]

        def move() -> None:
            for source, target in parts:
                size = len(source), *self.host.shape[1:]
                staged = torch.empty(size, device=self.kv.device, dtype=self._moved.dtype)
                for place, page in enumerate(source):
                    staged[place].copy_(as_bytes(self.host[page]), non_blocking=self._is_cuda)
                self._moved.index_copy_(1, target, staged.transpose(0, 1).contiguous())

        return move

    def _in_parts(self, swap: Swap) -> list[tuple[Sequence[int], Sequence[int]]]:
        """Sources and targets of what is copied at a time."""
        parts = [slice(start, start + self._staged) for start in range(0, len(swap.source), self._staged)]
        return [(swap.source[part], swap.target[part]) for part in parts]

    def poison(self, blocks: Iterable[int]) -> None:
        """Fill pages that hold nothing with a number that spoils every answer it gets into.

        Not a NaN: gathered pages are masked by a zero probability, and zero times NaN is NaN.
        """
        listed = list(blocks)
        if listed:
            poison = torch.tensor(LARGEST if self.kv.dtype == E4M3 else 1e4).to(self.kv.dtype)
            self._moved.index_fill_(1, self._ids(listed), as_bytes(poison.view(1)).item())

    def checksums(self, blocks: Sequence[int]) -> list[int]:
        """Return a checksum of each page's bits."""
        return _sums(self._moved.index_select(1, self._ids(blocks)).transpose(0, 1))

    def host_checksums(self, blocks: Sequence[int]) -> list[int]:
        """Checksums of pages of the host."""
        return _sums(as_bytes(self.host)[list(blocks)])

    def _ids(self, blocks: Sequence[int]) -> Tensor:
        return torch.tensor(blocks, dtype=torch.int64, device=self.kv.device)


def _sums(pages: Tensor) -> list[int]:
    """Sums of the words of each page, each times an odd number of its place: a page with its rows swapped differs."""
    words = pages.reshape(len(pages), -1).view(torch.int16).to(torch.int64)
    odd = torch.arange(words.shape[1], device=words.device, dtype=torch.int64) * 2 + 1
    listed: list[int] = (words * odd).sum(1).tolist()
    return listed


# Checks of the pages at every step, made by an executor in debug mode.


class Checks:
    """Raise AssertionError where a page is misused; fill pages with poison when they change hands.

    - every page has as many owners as the block manager says, and without a prefix cache one at most
    - free and used pages are all there are
    - tokens are written into pages of their own request, each slot once in a step
    - pages come back from the host as they went
    """

    def __init__(self, pool: PagedPool) -> None:
        self._pool = pool
        self._owned: set[int] = set()
        self._swapped: dict[int, int] = {}  # page of the host -> checksum

    def before(self, work: Work, blocks: BlockTables) -> None:
        """Check the tables, poison new pages, and keep checksums of those that move to the host."""
        owners = Counter(block for table in blocks.tables.values() for block in table)
        assert not owners[0], "the null block is in use"
        assert all(count == blocks.references[block] for block, count in owners.items()), "owners are miscounted"
        assert blocks.shares_blocks or max(owners.values(), default=1) == 1, "a page has two owners"
        free = blocks.num_free
        assert free + len(owners) == blocks.num_blocks == self._pool.num_blocks, "pages are missing"
        self._check_writes(work, blocks)
        leaving = self._pool.checksums(work.swap_out.source) if work.swap_out.source else []
        self._swapped |= dict(zip(work.swap_out.target, leaving, strict=True))
        self._poison(work, set(owners), blocks.shares_blocks)

    def after(self, work: Work) -> None:
        """Check that pages hold on the host what they held on the device, and the reverse for returning ones."""
        target = list(work.swap_out.target)
        if target:
            assert self._pool.host_checksums(target) == [self._swapped[page] for page in target], "swapped out wrongly"
        size = self._pool.block_size
        ends = [(part.table, part.computed // size) for part in work.decodes]
        written = {table[page] for table, page in ends if page < len(table)}
        back = [pair for pair in zip(work.swap_in.source, work.swap_in.target, strict=True) if pair[1] not in written]
        if back:
            found = self._pool.checksums([page for _, page in back])
            assert found == [self._swapped[page] for page, _ in back], "swapped in wrongly"
        used = {page for part in work.parts for page in part.table}
        self._pool.poison(sorted(set(work.swap_out.source) - self._owned - used))

    def _check_writes(self, work: Work, blocks: BlockTables) -> None:
        size = self._pool.block_size
        written: set[tuple[int, int]] = set()
        for part in work.parts:
            for place in range(part.computed, part.computed + len(part.tokens)):
                if place // size >= len(part.table):
                    assert part.is_held, f"row {part.row} computes beyond its pages"
                    continue
                block = part.table[place // size]
                slot = block, place % size
                assert block, f"row {part.row} writes to the null block"
                assert slot not in written, f"slot {slot} is written twice"
                written.add(slot)
            assert part.table == blocks.tables[part.row], f"row {part.row} uses pages that are not its own"

    def _poison(self, work: Work, owned: set[int], shares_blocks: bool) -> None:
        """Poison pages without an owner, and those that are taken and not yet written.

        A page of a prefix cache keeps its content without an owner: there, only pages that are written anew, from
        their first slot on, are poisoned.
        """
        pool = self._pool
        begun: set[int] = set()
        size = pool.block_size
        for part in work.parts:
            first = -(-part.computed // size)
            last = -(-(part.computed + len(part.tokens)) // size)
            begun.update(part.table[first:last])
        if not shares_blocks:
            begun |= self._owned - owned
        pool.poison(sorted(begun - set(work.swap_out.source)))
        self._owned = owned


# Small operators of a layer: residual and norm, rope and cache write, activation.
#
# `torch` computes them operator by operator, on any device; `triton` each in one kernel, as inference servers do
# (`gpu_backend.kernels`): launched one by one, a layer's small operators take longer than its matrix products at a
# batch of one.

NORM_EPS = 1e-5


class Pointwise(Protocol):
    """The operators of one model on one device. Tensors are [tokens, width]."""

    def add_norm(self, hidden: Tensor, part: Tensor, by: Norm) -> tuple[Tensor, Tensor]:
        """The residual stream with `part` added, and the norm of that."""

    def gated(self, up: Tensor) -> Tensor:
        """SwiGLU: silu of the first half of a row times the second."""

    def quantised(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """`gpu_backend.weights.quantised_rows`: in e4m3, and a scale [tokens, 1]."""


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


# The decoder.


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

    `reduce` sums what several processes have of one layer (`gpu_backend.backend`); None: there is one process.
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


# A decoder's operators, one at a time on made-up activations: kernel rows are measured with them.
#
# Each is done over all layers in turn, so that weights come from where a step finds them, and not from the nearest
# cache.

KernelCall = Callable[[], object]


class Operators:
    """The operators of a decoder, by their names in profiles."""

    def __init__(self, decoder: Decoder) -> None:
        self._decoder = decoder
        self._layers = decoder.weights.layers
        self._like = decoder.weights.embedding

    def of_tokens(self, tokens: int) -> dict[str, KernelCall]:
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

    def of_step(self, tokens: int) -> dict[str, KernelCall]:
        """Operators that a step has once."""
        weights = self._decoder.weights
        ids = torch.arange(tokens, device=self._like.device) % self._decoder.model.vocab
        hidden = self._made_up(tokens, self._decoder.model.hidden)
        return {
            "embedding": lambda: weights.embedding.index_select(0, ids),
            "final_norm": lambda: norm(hidden, weights.norm),
        }

    def of_sampled(self, rows: int) -> dict[str, KernelCall]:
        """Head and greedy sampler on so many rows."""
        head = self._decoder.weights.head
        hidden = self._made_up(rows, self._decoder.model.hidden)
        logits = linear(hidden, head)
        return {"lm_head": lambda: linear(hidden, head), "sampler": lambda: logits.argmax(-1)}

    def experts(self, tokens: int) -> tuple[KernelCall, int]:
        """The routed feed-forwards of all layers, and how many experts of a layer these tokens activate (the mean)."""
        hidden = self._made_up(tokens, self._decoder.model.hidden)
        routed = [layer.mlp for layer in self._layers if isinstance(layer.mlp, ExpertWeights)]
        top = self._decoder.model.active_experts
        chosen = [linear(hidden, mlp.router).topk(top, dim=-1).indices.unique().numel() for mlp in routed]
        return lambda: [self._decoder.routed(mlp, hidden) for mlp in routed], round(sum(chosen) / len(chosen))

    def attention(self, rows: StepArrays) -> KernelCall:
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
