"""Checks that a campaign begins with: they pass on a CPU, find what they look for, and run on a GPU where one is."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed (pip install -c constraints.txt -e '.[gpu]')")

from gpu_backend.attention.torch_attention import TorchAttention
from gpu_backend.decoder import PagedPool
from gpu_backend.work import Swap
from tools.kernel_bench import device_checks
from tools.kernel_bench.device_checks import CHECKS, Skipped


@pytest.mark.gpu
@pytest.mark.parametrize("name", CHECKS)
def test_on_a_gpu(name: str) -> None:
    if not torch.cuda.is_available():
        pytest.skip("torch finds no CUDA device")
    CHECKS[name]("cuda")


@pytest.mark.parametrize("name", ["graphs_give_eager_logits", "offsets_beyond_32_bits"])
def test_what_only_a_gpu_has_is_skipped(name: str) -> None:
    with pytest.raises(Skipped):
        CHECKS[name]("cpu")


def test_preempted_on_a_cpu() -> None:
    device_checks.preempted_requests_get_the_same_tokens("cpu")


def test_pages_that_come_back_wrong_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    device_checks.pages_survive_the_host("cpu")
    real = PagedPool.swap_in

    def wrong(self: PagedPool, swap: Swap) -> None:
        real(self, Swap(swap.source, tuple(reversed(swap.target))))

    monkeypatch.setattr(PagedPool, "swap_in", wrong)
    with pytest.raises(AssertionError, match="pages came back changed"):
        device_checks.pages_survive_the_host("cpu")


def test_attention_that_forgets_the_prefix_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    real = TorchAttention.prepare

    def forgetful(self: TorchAttention, rows: Any) -> Any:
        prepared = real(self, rows)
        for chunk in prepared.chunks:
            for tile in chunk.tiles:
                tile.mask[:, : max(0, tile.keys - 8)] = float("-inf")
        return prepared

    monkeypatch.setattr(TorchAttention, "prepare", forgetful)
    with pytest.raises(AssertionError, match=r"logits|another token"):
        device_checks.policies_give_the_same_tokens("cpu")
