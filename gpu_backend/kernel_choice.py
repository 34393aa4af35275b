"""Backends of attention over pages, by name: our own kernel, torch's operators, and other projects' kernels."""

from __future__ import annotations

import importlib
import importlib.util
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from gpu_backend.decoder import Pointwise, TorchPointwise
from gpu_backend.weights import put
from gpu_backend.work import UNSCALED, AttentionShape, KVScales, StepArrays
from simulator.errors import InputError
from simulator.parameters import check_choice

if TYPE_CHECKING:
    from gpu_backend.work import AttentionImpl


# Attention kernels of other projects over our pages, where they are installed: FlashInfer, FlashAttention-3,
# vLLM's.
#
# None of them skips leading keys, so a step with left padding is refused. Their pages are not in fp8.

Kernel = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class Prepared:
    """A step on the device: slots of its tokens, and what a kernel asks for."""

    page: Tensor  # [T], of each token's slot
    offset: Tensor  # [T], in that page
    tables: Tensor  # int32 [S, pages]
    context: Tensor  # int32 [S]
    query_start: Tensor  # int32 [S + 1]
    most_queries: int
    most_keys: int


class _Paged(ABC):
    """The base of these backends: it writes keys and values to their slots, and looks at the pages after that."""

    def __init__(self, shape: AttentionShape, device: str, dtype: torch.dtype) -> None:
        self._shape, self._device, self._dtype = shape, device, dtype

    def prepare(self, rows: StepArrays) -> Prepared:
        if rows.first.any():
            raise InputError("this attention cannot skip left padding", hint="attention triton or torch")
        size = self._shape.block_size
        parts = rows.slot // size, rows.slot % size, rows.tables, rows.context, rows.query_start
        there = [torch.from_numpy(np.ascontiguousarray(part)).to(self._device) for part in parts]
        page, offset, tables, context, query_start = there
        most_queries, most_keys = int(np.diff(rows.query_start).max()), int(rows.context.max())
        return Prepared(page, offset, tables, context, query_start, most_queries, most_keys)

    def attend(
        self, query: Tensor, key: Tensor, value: Tensor, kv: Tensor, prepared: Prepared, *, scales: KVScales = UNSCALED
    ) -> Tensor:
        put(kv, prepared.page, prepared.offset, key, value, scales)
        return self._look(query, kv, prepared)

    @abstractmethod
    def _look(self, query: Tensor, kv: Tensor, prepared: Prepared) -> Tensor:
        """Attention of `query` to the pages."""


class Flash3(_Paged):
    """FlashAttention's paged interface, in FlashAttention-3's words; `kernel` comes from what is installed.

    Our pages are [block, kv_head, slot, head_dim], theirs [block, slot, kv_head, head_dim]: a view, not a copy.
    """

    def __init__(self, shape: AttentionShape, device: str, dtype: torch.dtype, kernel: Kernel) -> None:
        super().__init__(shape, device, dtype)
        self._kernel = kernel

    def _look(self, query: Tensor, kv: Tensor, prepared: Prepared) -> Tensor:
        keys, values = kv[:, 0].transpose(1, 2), kv[:, 1].transpose(1, 2)
        out: Tensor = self._kernel(query, keys, values, prepared)
        return out


def flash3_kernel() -> Kernel:
    """The kernel of the package flash_attn_interface."""
    call = importlib.import_module("flash_attn_interface").flash_attn_with_kvcache

    def kernel(query: Tensor, keys: Tensor, values: Tensor, prepared: Prepared) -> Any:
        return call(
            query, keys, values, cache_seqlens=prepared.context, page_table=prepared.tables,
            cu_seqlens_q=prepared.query_start, max_seqlen_q=prepared.most_queries, causal=True,
        )  # fmt: skip

    return kernel


def vllm_kernel() -> Kernel:
    """The kernel of vLLM's own build of FlashAttention."""
    call = importlib.import_module("vllm.vllm_flash_attn").flash_attn_varlen_func

    def kernel(query: Tensor, keys: Tensor, values: Tensor, prepared: Prepared) -> Any:
        return call(
            q=query, k=keys, v=values, cu_seqlens_q=prepared.query_start, max_seqlen_q=prepared.most_queries,
            seqused_k=prepared.context, max_seqlen_k=prepared.most_keys, block_table=prepared.tables, causal=True,
        )  # fmt: skip

    return kernel


class FlashInfer(_Paged):
    """FlashInfer's paged prefill kernel, which takes decodes and chunks together; its layout HND is ours."""

    def __init__(self, shape: AttentionShape, device: str, dtype: torch.dtype) -> None:
        super().__init__(shape, device, dtype)
        make = importlib.import_module("flashinfer").BatchPrefillWithPagedKVCacheWrapper
        self._wrapper = make(torch.empty(256 << 20, dtype=torch.uint8, device=device), "HND")

    def prepare(self, rows: StepArrays) -> Prepared:
        prepared = super().prepare(rows)
        shape, size = self._shape, self._shape.block_size
        pages = -(-rows.context // size)
        listed = np.concatenate([rows.tables[index, :count] for index, count in enumerate(pages)])
        self._wrapper.plan(
            prepared.query_start,
            torch.from_numpy(np.concatenate(([0], np.cumsum(pages))).astype(np.int32)).to(self._device),
            torch.from_numpy(listed.astype(np.int32)).to(self._device),
            torch.from_numpy(((rows.context - 1) % size + 1).astype(np.int32)).to(self._device),
            *(shape.heads, shape.kv_heads, shape.head_dim, size),
            causal=True,
            q_data_type=self._dtype,
            kv_data_type=self._dtype,
        )
        return prepared

    def _look(self, query: Tensor, kv: Tensor, prepared: Prepared) -> Tensor:
        del prepared  # the wrapper keeps its plan
        out: Tensor = self._wrapper.run(query, kv)
        return out


@dataclass(frozen=True, slots=True)
class AttentionBackend:
    """One backend. `modules` must be installed; `fp8_kv`: its pages may be in fp8; `needs_cuda`: it runs on a CUDA
    device only, or in Triton's interpreter where it `is_triton`.
    """

    title: str
    modules: tuple[str, ...] = ()
    fp8_kv: bool = False
    needs_cuda: bool = True
    is_triton: bool = False

    def missing(self, device: str) -> str | None:
        """Tell why it cannot be used on a device; None where it can."""
        is_interpreted = self.is_triton and os.environ.get("TRITON_INTERPRET") == "1"
        if self.needs_cuda and device != "cuda" and not is_interpreted:
            return "it needs a CUDA device"
        absent = [name for name in self.modules if importlib.util.find_spec(name) is None]
        return f"{', '.join(absent)} not installed" if absent else None


def _made(name: str, shape: AttentionShape, device: str, dtype: torch.dtype) -> AttentionImpl:
    """Make the attention. Its module is loaded here: it may need what is not installed."""
    if name == "triton":
        from gpu_backend.attention.paged import PagedAttention

        sizes = shape.heads, shape.kv_heads, shape.head_dim, shape.block_size
        return PagedAttention(*sizes, device, dtype, fp8_kv=shape.fp8_kv)
    if name == "torch":
        from gpu_backend.attention.torch_attention import TorchAttention

        return TorchAttention(shape, device, dtype)
    if name in ("gathered", "cudnn"):
        from gpu_backend.attention import torch_attention

        rest = open_attention(default_attention(device), shape, device, dtype)  # for what is not gathered
        kernel = torch_attention.flash_kernel if name == "gathered" else torch_attention.cudnn_kernel
        return torch_attention.GatheredAttention(shape, device, rest, kernel)

    if name == "flashinfer":
        return FlashInfer(shape, device, dtype)
    kernel3 = flash3_kernel() if name == "flash-attn-3" else vllm_kernel()
    return Flash3(shape, device, dtype, kernel3)


ATTENTION: Mapping[str, AttentionBackend] = {
    "triton": AttentionBackend("our Triton kernel", ("triton",), fp8_kv=True, is_triton=True),
    "torch": AttentionBackend(
        "torch's scaled_dot_product_attention over gathered pages", fp8_kv=True, needs_cuda=False
    ),
    "gathered": AttentionBackend(
        "prefixes gathered for torch's flash kernel, chunks merged by log-sum-exp", fp8_kv=True, needs_cuda=False
    ),
    "cudnn": AttentionBackend("the same with cuDNN's kernel", fp8_kv=True),
    "flashinfer": AttentionBackend("FlashInfer's paged kernels", ("flashinfer",)),
    "flash-attn-3": AttentionBackend("FlashAttention-3's paged kernel", ("flash_attn_interface",)),
    "vllm": AttentionBackend("the FlashAttention that vLLM carries", ("vllm",)),
}


def default_attention(device: str) -> str:
    """The default backend: our own kernel on a CUDA device, torch's operators elsewhere."""
    return "triton" if device == "cuda" else "torch"


def open_attention(name: str, shape: AttentionShape, device: str, dtype: torch.dtype) -> AttentionImpl:
    """Make the attention of that name. InputError where it is unknown or absent, or cannot read such pages."""
    check_choice(name, tuple(ATTENTION), "attention")
    missing = ATTENTION[name].missing(device)
    if missing is not None:
        raise InputError(f"attention {name} cannot be used: {missing}", hint=f"there: {', '.join(available(device))}")
    if shape.fp8_kv and not ATTENTION[name].fp8_kv:
        takes = [other for other in available(device) if ATTENTION[other].fp8_kv]
        raise InputError(f"attention {name} takes no pages in fp8 here", hint=f"these do: {', '.join(takes)}")
    return _made(name, shape, device, dtype)


def available(device: str) -> list[str]:
    """Names of the backends that can be used on a device."""
    return [name for name, backend in ATTENTION.items() if backend.missing(device) is None]


# Backends of a layer's small operators, by name.

POINTWISE = ("torch", "triton")


def default_pointwise(device: str) -> str:
    """The kernels where our attention kernel is the default too, torch's operators elsewhere."""
    return "triton" if default_attention(device) == "triton" else "torch"


def open_pointwise(name: str, eps: float) -> Pointwise:
    """Open the operators of that name. InputError for an unknown name, and where Triton is not installed."""
    check_choice(name, POINTWISE, "pointwise")
    if name == "torch":
        return TorchPointwise(eps)
    if importlib.util.find_spec("triton") is None:
        raise InputError("pointwise triton cannot be used: triton not installed", hint="there: torch")
    from gpu_backend.kernels import TritonPointwise  # which loads Triton

    return TritonPointwise(eps)
