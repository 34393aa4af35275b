"""Numbers of eight bits, e4m3 (Micikevicius et al., 2022): tensors kept in them, and their matrix products.

A tensor is kept as e4m3 numbers times a scale in float32: weights with a scale for each output channel, or one for
all; activations with one for each token (or for all), found anew at every product; keys and values with one each for
a layer. A product is torch's `_scaled_mm` on a CUDA device. Elsewhere both sides are widened to float32 first: exact
products of the very same numbers, which is what the device's are compared with.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import linear

from gpu_backend.work import KVScales
from simulator.hardware.models import Model

E4M3 = torch.float8_e4m3fn
LARGEST = 448.0
"""The largest e4m3 number. There is no infinity: what is beyond would become NaN, so it is cut there."""
SMALLEST_SCALE = 1e-12  # of a token that is all zeros
ALIGNED = 16  # `_scaled_mm` takes matrices whose sides are multiples of this

Per = Literal["channel", "tensor"]


def has_fp8_weights(model: Model) -> bool:
    """Tell whether a model's matrices are kept and multiplied in fp8."""
    return model.dtype_bytes == 1


def kv_type(model: Model, computed_in: torch.dtype) -> torch.dtype:
    """The type of a model's pages on a device that computes in `computed_in`."""
    return E4M3 if model.kv_dtype_bytes == 1 else computed_in


def quantised(x: Tensor, scale: Tensor | float) -> Tensor:
    """x / scale, rounded to e4m3 and cut at its largest."""
    return (x.float() * (1.0 / scale)).clamp_(-LARGEST, LARGEST).to(E4M3)


def quantised_weight(weight: Tensor, per: Per = "channel") -> tuple[Tensor, Tensor]:
    """A matrix [out, in] in e4m3 and its scales, [out] or [1]: the largest number of each becomes e4m3's largest."""
    top = weight.abs().amax(1) if per == "channel" else weight.abs().max().view(1)
    scale = (top.float() / LARGEST).clamp_min_(SMALLEST_SCALE)
    return quantised(weight, scale[:, None] if per == "channel" else scale), scale


def quantised_rows(x: Tensor) -> tuple[Tensor, Tensor]:
    """Activations [tokens, width] in e4m3, and a scale [tokens, 1] for each token."""
    scale = (x.abs().amax(1, keepdim=True).float() / LARGEST).clamp_min_(SMALLEST_SCALE)
    return quantised(x, scale), scale


def product(x: Tensor, x_scale: Tensor, weight: Tensor, scale: Tensor, dtype: torch.dtype) -> Tensor:
    """x @ weight.T of e4m3 numbers, scaled: `x_scale` [tokens, 1] with `scale` [out], or one number each."""
    if not x.is_cuda:
        wide = weight.float() * (scale[:, None] if scale.numel() > 1 else scale)
        return linear(x.float() * x_scale, wide).to(dtype)
    of_weight = scale[None, :] if x_scale.numel() > 1 or scale.numel() > 1 else scale
    if of_weight.dim() == 2 and of_weight.shape[1] != len(weight):  # rows can only be paired with channels
        of_weight = of_weight.expand(1, len(weight)).contiguous()
    return torch._scaled_mm(x, weight.t(), scale_a=x_scale, scale_b=of_weight, out_dtype=dtype, use_fast_accum=True)


def stored(x: Tensor, scale: float, dtype: torch.dtype) -> Tensor:
    """Bring keys or values to the type of the pages."""
    return quantised(x, scale) if dtype == E4M3 else x


def widened(pages: Tensor, scale: float, dtype: torch.dtype) -> Tensor:
    """Bring keys or values from the pages to the type that computes."""
    return pages.to(dtype) * scale if pages.dtype == E4M3 else pages


def as_bytes(tensor: Tensor) -> Tensor:
    """View e4m3 numbers as bytes: few operators take that type, and bytes can be moved by any."""
    return tensor.view(torch.uint8) if tensor.dtype == E4M3 else tensor


def put(kv: Tensor, page: Tensor, offset: Tensor, key: Tensor, value: Tensor, scales: KVScales) -> None:
    """Write keys and values [tokens, kv_heads, head_dim] to their slots of one layer's pages."""
    raw = as_bytes(kv)
    raw[page, 0, :, offset] = as_bytes(stored(key, scales.key, kv.dtype))
    raw[page, 1, :, offset] = as_bytes(stored(value, scales.value, kv.dtype))


def taken(pages: Tensor, rows: Tensor) -> Tensor:
    """Take rows of pages, in the order given."""
    return as_bytes(pages).index_select(0, rows).view(pages.dtype)


def random_pages(pages: Tensor, seed: int, at_once: int = 2**26) -> None:
    """Fill pages with numbers of the order of 1; e4m3 pages in parts, as a generator draws no such numbers."""
    random = torch.Generator(device=pages.device).manual_seed(seed)
    if pages.dtype != E4M3:
        pages.normal_(generator=random)
        return
    flat = pages.view(-1)
    for start in range(0, len(flat), at_once):
        part = flat[start : start + at_once]
        part.copy_(torch.randn(len(part), generator=random, device=pages.device, dtype=torch.float32).to(E4M3))
