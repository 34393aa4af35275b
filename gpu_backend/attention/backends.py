"""Backends of attention over pages, by name: our own kernel, torch's operators, and others that are installed.

All of them are a `gpu_backend.work.Attention` over the same pages, so that a model runs, is measured and is priced with
any of them. A profile names the one it was measured with.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpu_backend.attention.shape import AttentionShape
from simulator.errors import InputError
from simulator.hardware.dimensions import check_choice

if TYPE_CHECKING:
    import torch

    from gpu_backend.work import Attention


Make = Callable[[AttentionShape, str, "torch.dtype"], "Attention"]


@dataclass(frozen=True, slots=True)
class AttentionBackend:
    """One of them. `modules` must be installed; `fp8_kv`: its pages may be in fp8; `needs_cuda`: it runs on nothing
    else, but for Triton's interpreter where it `is_triton`.
    """

    title: str
    make: Make
    modules: tuple[str, ...] = ()
    fp8_kv: bool = False
    needs_cuda: bool = True
    is_triton: bool = False

    def missing(self, device: str) -> str | None:
        """Why it cannot be used on a device; None where it can."""
        is_interpreted = self.is_triton and os.environ.get("TRITON_INTERPRET") == "1"
        if self.needs_cuda and device != "cuda" and not is_interpreted:
            return "it needs a CUDA device"
        absent = [name for name in self.modules if importlib.util.find_spec(name) is None]
        return f"{', '.join(absent)} not installed" if absent else None


def _triton(shape: AttentionShape, device: str, dtype: torch.dtype) -> Attention:
    from gpu_backend.attention.paged import PagedAttention

    sizes = shape.heads, shape.kv_heads, shape.head_dim, shape.block_size
    return PagedAttention(*sizes, device, dtype, fp8_kv=shape.fp8_kv)


def _torch(shape: AttentionShape, device: str, dtype: torch.dtype) -> Attention:
    from gpu_backend.torch_attention import TorchAttention

    return TorchAttention(shape.heads, shape.kv_heads, shape.head_dim, shape.block_size, device, dtype)


def _paged(shape: AttentionShape, device: str, dtype: torch.dtype) -> Attention:
    """The device's default backend, for the part of a step that is not gathered."""
    return open_attention(default_attention(device), shape, device, dtype)


def _gathered(shape: AttentionShape, device: str, dtype: torch.dtype) -> Attention:
    from gpu_backend.attention.gathered import GatheredAttention

    return GatheredAttention(shape, device, _paged(shape, device, dtype))


def _cudnn(shape: AttentionShape, device: str, dtype: torch.dtype) -> Attention:
    from gpu_backend.attention.gathered import GatheredAttention, cudnn_kernel

    return GatheredAttention(shape, device, _paged(shape, device, dtype), cudnn_kernel)


def _flashinfer(shape: AttentionShape, device: str, dtype: torch.dtype) -> Attention:
    from gpu_backend.attention.installed import FlashInfer

    return FlashInfer(shape, device, dtype)


def _flash3(shape: AttentionShape, device: str, dtype: torch.dtype) -> Attention:
    from gpu_backend.attention.installed import Flash3, flash3_kernel

    return Flash3(shape, device, dtype, flash3_kernel())


def _vllm(shape: AttentionShape, device: str, dtype: torch.dtype) -> Attention:
    from gpu_backend.attention.installed import Flash3, vllm_kernel

    return Flash3(shape, device, dtype, vllm_kernel())


ATTENTION: Mapping[str, AttentionBackend] = {
    "triton": AttentionBackend("our Triton kernel", _triton, ("triton",), fp8_kv=True, is_triton=True),
    "torch": AttentionBackend(
        "torch's scaled_dot_product_attention over gathered pages", _torch, fp8_kv=True, needs_cuda=False
    ),
    "gathered": AttentionBackend(
        "prefixes gathered for torch's flash kernel, chunks merged by log-sum-exp",
        _gathered,
        fp8_kv=True,
        needs_cuda=False,
    ),
    "cudnn": AttentionBackend("the same with cuDNN's kernel", _cudnn, fp8_kv=True),
    "flashinfer": AttentionBackend("FlashInfer's paged kernels", _flashinfer, ("flashinfer",)),
    "flash-attn-3": AttentionBackend("FlashAttention-3's paged kernel", _flash3, ("flash_attn_interface",)),
    "vllm": AttentionBackend("the FlashAttention that vLLM carries", _vllm, ("vllm",)),
}


def default_attention(device: str) -> str:
    """Our own kernel on a CUDA device, torch's operators elsewhere."""
    return "triton" if device == "cuda" else "torch"


def open_attention(name: str, shape: AttentionShape, device: str, dtype: torch.dtype) -> Attention:
    """Attention by its name. Raises InputError for an unknown one, one that is not there, and pages it cannot read."""
    check_choice(name, tuple(ATTENTION), "attention")
    missing = ATTENTION[name].missing(device)
    if missing is not None:
        raise InputError(f"attention {name} cannot be used: {missing}", hint=f"there: {', '.join(available(device))}")
    if shape.fp8_kv and not ATTENTION[name].fp8_kv:
        takes = [other for other in available(device) if ATTENTION[other].fp8_kv]
        raise InputError(f"attention {name} takes no pages in fp8 here", hint=f"these do: {', '.join(takes)}")
    return ATTENTION[name].make(shape, device, dtype)


def available(device: str) -> list[str]:
    """Names of those that can be used on a device."""
    return [name for name, backend in ATTENTION.items() if backend.missing(device) is None]
