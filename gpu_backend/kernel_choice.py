"""Backends of attention over pages, by name: our own kernel, torch's operators, and others that are installed.

Each is a `gpu_backend.work.AttentionImpl` over the same pages, so a model can run, be measured and be priced with any
of them. A profile names the one it was measured with.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpu_backend.decoder import Pointwise, TorchPointwise
from gpu_backend.work import AttentionShape
from simulator.errors import InputError
from simulator.parameters import check_choice

if TYPE_CHECKING:
    import torch

    from gpu_backend.work import AttentionImpl


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
    from gpu_backend.attention import installed

    if name == "flashinfer":
        return installed.FlashInfer(shape, device, dtype)
    kernel3 = installed.flash3_kernel() if name == "flash-attn-3" else installed.vllm_kernel()
    return installed.Flash3(shape, device, dtype, kernel3)


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
