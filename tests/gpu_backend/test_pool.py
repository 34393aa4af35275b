"""Pages on the device and on the host."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed (the extra [gpu])")

from gpu_backend.backend import Backend, Done
from gpu_backend.decoder import PagedPool
from gpu_backend.work import Swap, Work
from simulator.errors import InputError
from simulator.memory.blocks import BlockLedger, BlockManager
from simulator.simulate import simulate
from tests.gpu_maker import TINY, WORKLOAD, backend, policy_maker, serve
from tests.laws.scenarios import Memory


def pool(blocks: int = 6, host: int = 4) -> PagedPool:
    made = PagedPool(TINY, blocks, 4, host, "cpu", torch.float32)
    made.kv.copy_(torch.randn(made.kv.shape, generator=torch.Generator().manual_seed(0)))
    return made


def test_layout() -> None:
    made = pool()
    assert made.kv.shape == (TINY.layers, 7, 2, TINY.kv_heads, 4, TINY.head_dim)
    assert made.num_blocks == 6
    assert made.bytes_per_block == TINY.layers * 2 * TINY.kv_heads * 4 * TINY.head_dim * 4


@pytest.mark.parametrize("staged", [1, 2, 100])
def test_pages_come_back_as_they_went(staged: int) -> None:
    made = pool()
    made._staged = staged
    before = made.kv.clone()
    sums = made.checksums([5, 1, 3])
    made.swap_out(Swap((5, 1, 3), (0, 2, 3)))
    assert made.host_checksums([0, 2, 3]) == sums
    made.poison([5, 1, 3])
    made.swap_in(Swap((3, 0, 2), (2, 6, 5)))
    assert torch.equal(made.kv[:, [2, 6, 5]], before[:, [3, 5, 1]])
    assert torch.equal(made.kv[:, [0, 4]], before[:, [0, 4]]), "others are as they were"


def test_checksums_tell_pages_apart() -> None:
    made = pool()
    assert len(set(made.checksums(range(7)))) == 7
    before = made.checksums([2])
    rows = made.kv[:, 2].clone()
    made.kv[:, 2, :, :, 0], made.kv[:, 2, :, :, 1] = rows[:, :, :, 1], rows[:, :, :, 0]
    assert made.checksums([2]) != before, "also where only the order differs"


class Broken(Backend):
    """A backend that does one thing wrong."""

    wrong = ""

    def run(self, work: Work) -> Done:
        swap_in = work.swap_in
        if self.wrong == "swap_in" and len(swap_in.source) > 1:
            work = replace(work, swap_in=Swap(swap_in.source, swap_in.target[1:] + swap_in.target[:1]))
        return super().run(work)


def test_a_wrong_copy_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.gpu_maker.Backend", Broken)
    serve(policy_maker("preemptive", preemption_mode="swap"), blocks=30, host=200)
    monkeypatch.setattr(Broken, "wrong", "swap_in")
    with pytest.raises(AssertionError, match="swapped in wrongly"):
        serve(policy_maker("preemptive", preemption_mode="swap"), blocks=30, host=200)


class DoubleOwner(BlockManager):
    """Gives a block away twice."""

    def allocate(self, row: int, num_blocks: int) -> None:
        super().allocate(row, num_blocks)
        if row == 2 and num_blocks:
            stolen = next(iter(self.tables.values()))[0]
            self.tables[row][0] = stolen


def test_two_owners_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.gpu_maker.BlockManager", DoubleOwner)
    with pytest.raises(AssertionError, match="owners are miscounted"):
        serve(policy_maker("continuous"))


def test_blocks_without_ids_are_refused() -> None:
    from gpu_backend.executor import DeviceExecutor

    arguments: dict[str, Any] = {"kv": Memory(40, 4), "make_policy": policy_maker("continuous")}
    with pytest.raises(InputError, match="blocks with ids, which BlockLedger does not have"):
        simulate(WORKLOAD, make_executor=lambda: DeviceExecutor(backend()), make_blocks=BlockLedger, **arguments)


def test_a_request_beyond_the_positions_is_refused() -> None:
    short = replace(TINY, max_model_len=60, name="short")
    with pytest.raises(InputError, match="comes to 69 tokens, short takes 60"):
        serve(policy_maker("continuous"), model=short)
