"""One seam for attention: torch's, gathered prefixes, and the adapters of kernels that are not installed here."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed (pip install -c constraints.txt -e '.[gpu]')")

from gpu_backend.attention.torch_attention import flash_kernel, merged
from gpu_backend.backend import Backend
from gpu_backend.device import Cpu
from gpu_backend.kernel_choice import (
    ATTENTION,
    Flash3,
    FlashInfer,
    available,
    flash3_kernel,
    open_attention,
    vllm_kernel,
)
from gpu_backend.work import AttentionShape, ScheduledPart, StepArrays, step_arrays
from simulator.errors import InputError
from tests.gpu_maker import TINY, close
from tools.kernel_bench.cases import reference_attention

SHAPE = AttentionShape(4, 2, 16, 8)


def rows(padding: int = 0) -> StepArrays:
    """Two decodes, a fresh prompt, a chunk behind a prefix that ends inside a page."""
    pages = iter((np.random.default_rng(0).permutation(40) + 1).tolist())

    def part(row: int, computed: int, tokens: int, padding: int = 0) -> ScheduledPart:
        table = [next(pages) for _ in range(-(-(computed + tokens) // SHAPE.block_size))]
        return ScheduledPart(row, computed, [0] * tokens, table, padding)

    return step_arrays([part(0, 30, 1), part(1, 5, 1), part(2, 0, 19, padding), part(3, 37, 12)], 2, SHAPE.block_size)


def tensors(step: StepArrays) -> tuple[Any, Any, Any, Any]:
    generator = torch.Generator().manual_seed(2)
    tokens = len(step.token)
    query = torch.randn((tokens, 4, 16), generator=generator)
    key, value = torch.randn((2, tokens, 2, 16), generator=generator)
    return query, key, value, torch.randn((42, 2, 2, 8, 16), generator=generator)


def expected(step: StepArrays, query: Any, kv: Any) -> Any:
    lengths = step.context.tolist(), np.diff(step.query_start).tolist()
    return reference_attention(query, kv, torch.from_numpy(step.tables), *lengths, first=step.first.tolist())


@pytest.mark.parametrize("name", ["torch", "gathered"])
@pytest.mark.parametrize("padding", [0, 7])
def test_what_runs_here_is_right(name: str, padding: int) -> None:
    step = rows(padding)
    query, key, value, kv = tensors(step)
    attention = open_attention(name, SHAPE, "cpu", torch.float32)
    out = attention.attend(query, key, value, kv, attention.prepare(step))
    real = torch.arange(len(query)) >= 2 + padding if padding else torch.ones(len(query), dtype=torch.bool)
    real[:2] = True
    assert close(out[real], expected(step, query, kv)[real])
    assert torch.equal(kv[torch.from_numpy(step.slot // 8), 1, :, torch.from_numpy(step.slot % 8)], value)


def test_parts_are_merged_by_their_sums() -> None:
    generator = torch.Generator().manual_seed(1)
    query, key, value = (torch.randn((1, 4, 5, 16), generator=generator) for _ in range(3))
    whole, _ = flash_kernel(query, key, value, False)
    one = flash_kernel(query, key[:, :, :2], value[:, :, :2], False)
    other = flash_kernel(query, key[:, :, 2:], value[:, :, 2:], False)
    assert close(merged(*one, *other), whole)


def module(monkeypatch: pytest.MonkeyPatch, name: str, **content: Any) -> None:
    made = ModuleType(name)
    made.__dict__.update(content)
    monkeypatch.setitem(sys.modules, name, made)


def paged(query: Any, keys: Any, values: Any, tables: Any, context: Any, starts: Any) -> Any:
    """A kernel of FlashAttention's layout: pages [block, slot, kv_head, head_dim]."""
    kv = torch.stack([keys, values], dim=1).transpose(2, 3)
    return reference_attention(query, kv, tables, context.tolist(), starts.diff().tolist()).float()


def test_flash_attention_3_gets_our_pages_as_a_view(monkeypatch: pytest.MonkeyPatch) -> None:
    step = rows()
    query, key, value, kv = tensors(step)

    def kernel(q: Any, keys: Any, values: Any, **given: Any) -> Any:
        assert keys.data_ptr() == kv.data_ptr(), "no copy"
        assert given["causal"]
        assert given["max_seqlen_q"] == 19
        return paged(q, keys, values, given["page_table"], given["cache_seqlens"], given["cu_seqlens_q"])

    module(monkeypatch, "flash_attn_interface", flash_attn_with_kvcache=kernel)
    attention = Flash3(SHAPE, "cpu", torch.float32, flash3_kernel())
    assert close(attention.attend(query, key, value, kv, attention.prepare(step)), expected(step, query, kv))


def test_vllms_kernel_gets_our_pages_as_a_view(monkeypatch: pytest.MonkeyPatch) -> None:
    step = rows()
    query, key, value, kv = tensors(step)

    def kernel(*, q: Any, k: Any, v: Any, **given: Any) -> Any:
        assert (given["max_seqlen_k"], given["causal"]) == (49, True)
        return paged(q, k, v, given["block_table"], given["seqused_k"], given["cu_seqlens_q"])

    module(monkeypatch, "vllm")
    module(monkeypatch, "vllm.vllm_flash_attn", flash_attn_varlen_func=kernel)
    attention = Flash3(SHAPE, "cpu", torch.float32, vllm_kernel())
    assert close(attention.attend(query, key, value, kv, attention.prepare(step)), expected(step, query, kv))


def test_flashinfer_is_told_the_pages_of_each_sequence(monkeypatch: pytest.MonkeyPatch) -> None:
    step = rows()
    query, key, value, kv = tensors(step)

    class Wrapper:
        def __init__(self, buffer: Any, layout: str) -> None:
            assert layout == "HND"

        def plan(self, starts: Any, pages_from: Any, pages: Any, last: Any, *shape: int, **given: Any) -> None:
            assert shape == (4, 2, 16, 8)
            assert given["causal"]
            counts = pages_from.diff().tolist()
            self.context = [(count - 1) * 8 + end for count, end in zip(counts, last.tolist(), strict=True)]
            self.starts = starts
            self.tables = torch.zeros((len(counts), max(counts)), dtype=torch.int32)
            for index, (begin, count) in enumerate(zip(pages_from.tolist(), counts, strict=False)):
                self.tables[index, :count] = pages[begin : begin + count]

        def run(self, q: Any, pages: Any) -> Any:
            return reference_attention(q, pages, self.tables, self.context, self.starts.diff().tolist()).float()

    module(monkeypatch, "flashinfer", BatchPrefillWithPagedKVCacheWrapper=Wrapper)
    attention = FlashInfer(SHAPE, "cpu", torch.float32)
    assert close(attention.attend(query, key, value, kv, attention.prepare(step)), expected(step, query, kv))


def test_left_padding_is_refused_where_it_cannot_be_skipped() -> None:
    with pytest.raises(InputError, match="left padding"):
        Flash3(SHAPE, "cpu", torch.float32, lambda *_: None).prepare(rows(3))


def test_what_is_not_there_is_said() -> None:
    assert {"torch", "gathered"} <= set(available("cpu"))
    assert "flash-attn-3" not in available("cpu")
    with pytest.raises(InputError, match="needs a CUDA device"):
        open_attention("vllm", SHAPE, "cpu", torch.float32)
    with pytest.raises(InputError, match="unknown attention"):
        open_attention("tritom", SHAPE, "cpu", torch.float32)
    assert ATTENTION["flash-attn-3"].missing("cuda") == "flash_attn_interface not installed"


def test_times_beside_another_attention_are_in_other_terms() -> None:
    """A canary is a step of the model: with another attention it is another one."""
    one, other = (Backend(TINY, Cpu(1), 16, 4, attention=name) for name in ("torch", "gathered"))
    assert one.canary_name != other.canary_name == Backend(TINY, Cpu(1), 99, 4, attention="gathered").canary_name
