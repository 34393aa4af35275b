"""Run with TRITON_INTERPRET=1: the kernels of a layer's small operators against float64, one line a case as JSON."""

import json
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import rms_norm, silu

from gpu_backend.decoder import Placing, TorchPointwise, turned
from gpu_backend.kernels import TritonPointwise
from gpu_backend.weights import Dense, Layer, Mlp, Norm

EPS = 1e-5
PAGE, BLOCKS, POSITIONS = 8, 6, 64


@dataclass(frozen=True, slots=True)
class Case:
    """Heads, KV heads, head size, type, and whether heads are normed."""

    heads: int
    kv_heads: int
    head_dim: int
    dtype: torch.dtype
    normed: bool

    @property
    def name(self) -> str:
        kind = str(self.dtype).removeprefix("torch.")
        return f"{self.heads}/{self.kv_heads} D{self.head_dim} {kind}{' normed' if self.normed else ''}"


CASES = tuple(
    Case(heads, kv_heads, head_dim, dtype, normed)
    for heads, kv_heads, head_dim in ((4, 2, 32), (3, 1, 80), (6, 2, 64))
    for dtype in (torch.float32, torch.bfloat16)
    for normed in (False, True)
)


def main() -> None:
    torch.manual_seed(0)
    for case in CASES:
        print(json.dumps({"name": case.name, "errors": _errors(case), "elsewhere": _elsewhere(case)}))


def _errors(case: Case) -> dict[str, float]:
    ours, kind = TritonPointwise(EPS), case.dtype
    hidden, part = torch.randn(2, 5, 96).to(kind)
    by = Norm((torch.rand(96) + 0.5).to(kind), None)
    total, normed = ours.add_norm(hidden, part, by)
    whole = hidden.double() + part.double()
    up = torch.randn(5, 2 * 1100).to(kind)
    gate, value = up.double().chunk(2, dim=-1)
    query, key, values, expected = _placed(case)
    return {
        "total": _apart(total, whole),
        "norm": _apart(normed, rms_norm(total.double(), (96,), by.weight.double(), EPS)),
        "gated": _apart(ours.gated(up), silu(gate) * value),
        "query": _apart(query, expected[0]),
        "key": _apart(key, expected[1]),
        "value": _apart(values, expected[2]),
    }


def _placed(case: Case) -> tuple[Tensor, Tensor, Tensor, tuple[Tensor, Tensor, Tensor]]:
    """What `place` gives and writes, beside the same in float64."""
    mixed, layer, rope, position, kv, slots = _given(case)
    query = TritonPointwise(EPS).place(mixed, layer, rope, position, kv, slots)
    where = slots >= 0
    page, offset = slots[where] // PAGE, slots[where] % PAGE
    cut = mixed.double().split((case.heads, case.kv_heads, case.kv_heads), dim=1)
    turn = rope.double()[position].unsqueeze(2)
    heads = []
    for part, weight in zip(cut[:2], (layer.query_norm, layer.key_norm), strict=True):
        normed = part if weight is None else rms_norm(part, (case.head_dim,), weight.double(), EPS)
        heads.append(turned(normed, turn))
    found = kv[page, 0, :, offset], kv[page, 1, :, offset]
    return query, found[0], found[1], (heads[0], heads[1][where], cut[2][where])


def _elsewhere(case: Case) -> int:
    """How many numbers of the pages changed that are no slot's, and were given back by torch's operators: none."""
    mixed, layer, rope, position, kv, slots = _given(case)
    before = kv.clone()
    TritonPointwise(EPS).place(mixed, layer, rope, position, kv, slots)
    where = slots[slots >= 0]
    kv[where // PAGE, :, :, where % PAGE] = before[where // PAGE, :, :, where % PAGE]
    assert not isinstance(TorchPointwise(EPS), Placing)
    return int((kv != before).sum())


def _given(case: Case) -> tuple[Tensor, Layer, Tensor, Tensor, Tensor, Tensor]:
    torch.manual_seed(1)
    kind, width = case.dtype, case.head_dim
    mixed = torch.randn(5, case.heads + 2 * case.kv_heads, width).to(kind)
    weights = (torch.rand(2, width) + 0.5).to(kind)
    none = Dense(torch.empty(0), None)
    norm = Norm(torch.ones(1), None)
    heads = (weights[0], weights[1]) if case.normed else (None, None)
    layer = Layer(norm, none, heads[0], heads[1], none, norm, Mlp(none, none))
    angle = torch.rand(POSITIONS, width // 2) * 6
    rope = torch.stack([angle.cos(), angle.sin()], dim=1).to(kind)
    position = torch.tensor([0, 5, 63, 7, 8])
    slots = torch.tensor([9, 47, -1, 8, 16], dtype=torch.int32)
    kv = torch.randn(BLOCKS, 2, case.kv_heads, PAGE, width).to(kind)
    return mixed, layer, rope, position, kv, slots


def _apart(found: Tensor, expected: Tensor) -> float:
    return float((found.double() - expected).norm() / expected.norm())


if __name__ == "__main__":
    main()
