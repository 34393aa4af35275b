"""Logits of paged steps against a plain forward pass in float64, for every kind of shape in the model table."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed (the extra [gpu])")

from gpu_backend.attention.torch_attention import length_buckets
from gpu_backend.backend import Backend
from gpu_backend.device import Cpu
from gpu_backend.weights import has_attention_alone
from gpu_backend.work import ScheduledPart, Work, step_arrays
from simulator.errors import InputError
from simulator.hardware.models import MODELS, Model, custom_model
from tests.dense_decoder import dense_logits
from tests.gpu_maker import CLOSE, TINY

BASE: dict[str, Any] = {
    "layers": 2, "hidden": 48, "intermediate": 80, "heads": 4, "kv_heads": 4, "vocab": 101, "max_model_len": 256,
}  # fmt: skip
SHAPES = {
    "llama": {"kv_heads": 2},
    "multi-query": {"kv_heads": 1, "qkv_bias": True},
    "qwen3": {"kv_heads": 2, "qk_norm": True, "head_dim": 16, "tie_embeddings": True},
    "gpt2": {"gated_mlp": False, "biases": True, "positions": 256, "tie_embeddings": True},
    "mixtral": {"kv_heads": 2, "experts": 5, "active_experts": 2},
    "shared experts": {
        "experts": 4, "active_experts": 3, "shared_experts": 1, "dense_layers": 1, "dense_intermediate": 64,
    },
}  # fmt: skip


def shape(name: str) -> Model:
    return custom_model({**BASE, **SHAPES[name]})


class Paged:
    """Sequences whose parts are computed in steps put together by hand, in pages drawn at random."""

    def __init__(self, model: Model, block_size: int, seed: int = 0) -> None:
        self.backend = Backend(model, Cpu(repeats=1), 80, block_size, seed=seed)
        self.backend.pool.kv.fill_(float("nan"))
        self.backend.pool.kv[:, 0] = 0  # the null page
        random = np.random.default_rng(seed)
        self.free = (random.permutation(80) + 1).tolist()
        self.tokens = [random.integers(0, model.vocab, 60).tolist() for _ in range(4)]
        self.computed = [0] * 4
        self.tables: list[list[int]] = [[] for _ in range(4)]

    def part(self, row: int, count: int) -> ScheduledPart:
        begin, size = self.computed[row], self.backend.block_size
        while len(self.tables[row]) * size < begin + count:
            self.tables[row].append(self.free.pop())
            self.backend.pool.poison(self.tables[row][-1:])
        self.computed[row] += count
        return ScheduledPart(row, begin, self.tokens[row][begin : begin + count], tuple(self.tables[row]))

    def step(self, decodes: list[int], chunks: list[tuple[int, int]]) -> Work:
        return Work(tuple(self.part(row, 1) for row in decodes), tuple(self.part(*chunk) for chunk in chunks))


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("block_size", [3, 16])
def test_logits_are_those_of_a_plain_forward_pass(name: str, block_size: int) -> None:
    paged = Paged(shape(name), block_size)
    weights = paged.backend.decoder.weights
    expected = [dense_logits(paged.backend.model, weights, tokens) for tokens in paged.tokens]
    steps: list[tuple[list[int], list[tuple[int, int]]]] = [
        ([], [(0, 7), (1, 40)]),
        ([0], [(2, 1), (1, 5)]),
        ([2, 1, 0], [(3, 55)]),
        ([3, 0, 2, 1], []),
    ]
    for decodes, chunks in steps:
        work = paged.step(decodes, chunks)
        found = paged.backend.logits(work)
        for row, logits in zip([part.row for part in work.parts], found, strict=True):
            assert (logits.double() - expected[row][paged.computed[row] - 1]).abs().max() < CLOSE


def test_doing_a_step_over_changes_nothing() -> None:
    paged = Paged(shape("llama"), 4)
    paged.backend.run(paged.step([], [(0, 9), (1, 30)]))
    work = paged.step([0, 1], [(2, 11)])
    once = paged.backend.run(work)
    again = paged.backend.run(work)
    assert (once.tokens, once.best) == (again.tokens, again.best)
    assert once.device_s == once.forward_s > 0


def test_layers_cut_the_model_down() -> None:
    whole = Backend(TINY, Cpu(1), 4, 4, layers=None)
    cut = Backend(TINY, Cpu(1), 4, 4, layers=1)
    assert len(whole.decoder.weights.layers) == 2
    assert len(cut.decoder.weights.layers) == len(cut.pool.kv) == 1


def test_weights_are_those_of_the_seed() -> None:
    one, same, other = (Backend(TINY, Cpu(1), 4, 4, seed=seed).decoder.weights for seed in (1, 1, 2))
    assert torch.equal(one.layers[1].qkv.weight, same.layers[1].qkv.weight)
    assert not torch.equal(one.layers[1].qkv.weight, other.layers[1].qkv.weight)


ATTENDING = [name for name, model in MODELS.items() if not model.kv_lora_rank and has_attention_alone(model)]


@pytest.mark.parametrize("name", ATTENDING)
def test_weights_have_as_many_parameters_as_the_model(name: str) -> None:
    """On torch's meta device, where tensors have shapes and no memory: one layer of each model of the table."""
    from dataclasses import replace

    from gpu_backend import weights as made

    model = replace(MODELS[name], layers=1, dense_layers=0, dense_intermediate=0)
    maker = made._Maker.__new__(made._Maker)
    maker._model, maker._options = model, {"device": "meta", "dtype": torch.bfloat16}
    maker._random = torch.Generator()
    found = maker.weights()
    assert sum(tensor.numel() for tensor in tensors(found, set())) == model.num_parameters


def tensors(value: Any, seen: set[int]) -> list[Any]:
    """Every tensor in nested dataclasses, shared ones once."""
    if isinstance(value, torch.Tensor):
        if id(value) in seen:
            return []
        seen.add(id(value))
        return [value]
    if isinstance(value, tuple):
        return [tensor for item in value for tensor in tensors(item, seen)]
    if value is None or isinstance(value, float):
        return []
    return [tensor for name in value.__slots__ for tensor in tensors(getattr(value, name), seen)]


def test_latent_attention_is_refused() -> None:
    latent = custom_model({**BASE, "kv_lora_rank": 16, "rope_head_dim": 8})
    with pytest.raises(InputError, match="no multi-head latent attention"):
        Backend(latent, Cpu(1), 4, 4)


def test_layers_with_a_state_are_refused() -> None:
    with pytest.raises(InputError, match="no layers but plain attention"):
        Backend(MODELS["qwen3-next-80b-a3b"], Cpu(1), 4, 4)


def test_rows_say_where_everything_goes() -> None:
    decode = ScheduledPart(0, 5, [7], (3, 4), padding=2)
    held = ScheduledPart(1, 8, [9], (5, 6), is_held=True)
    chunk = ScheduledPart(2, 3, [1, 2, 3], (8, 9), samples=False)
    rows = step_arrays([decode, held, chunk], 2, 4)
    assert rows.token.tolist() == [7, 9, 1, 2, 3]
    assert rows.position.tolist() == [3, 8, 3, 4, 5], "padding has no position"
    assert rows.slot.tolist() == [4 * 4 + 1, 0, 8 * 4 + 3, 9 * 4, 9 * 4 + 1], "beyond its pages: the null page"
    assert rows.context.tolist() == [6, 9, 6]
    assert rows.first.tolist() == [2, 0, 0]
    assert rows.tables.tolist() == [[3, 4, 0], [5, 6, 0], [8, 9, 0]]
    assert rows.query_start.tolist() == [0, 1, 2, 5]
    assert rows.sampled.tolist() == [0, 1]


def test_decodes_are_cut_into_buckets_of_similar_context() -> None:
    context = np.array([100, 7, 120, 126, 8, 9, 1000, 500], dtype=np.int32)
    buckets = length_buckets(context)
    assert [context[bucket].tolist() for bucket in buckets] == [[7, 8], [9], [100, 120], [126], [500], [1000]]
    assert sorted(index for bucket in buckets for index in bucket) == list(range(8))
