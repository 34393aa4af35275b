"""e4m3 numbers in Triton: rounding to them, and quantising activations."""
# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
# Triton compiles these functions from their source: their arguments are pointers and scalars of its own language.

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from gpu_backend.fp8 import E4M3, LARGEST, SMALLEST_SCALE

_WIDE = 4096  # elements of a row from which on eight warps share it


@triton.jit
def cut(x, kind: tl.constexpr, emulated: tl.constexpr):
    """float32 as `kind`. An e4m3 number beyond the largest would be NaN, so it is cut there.

    `emulated` is for the interpreter, whose cast to e4m3 rounds upwards and forgets to carry: it is given numbers that
    are e4m3's already, the nearest multiple of an eighth of their power of two.
    """
    if kind == tl.float8e4nv:
        x = tl.clamp(x, -448.0, 448.0)
        if emulated:
            power = (x.to(tl.int32, bitcast=True) & 0x7F800000).to(tl.float32, bitcast=True)
            step = tl.maximum(power * 0.125, 0.001953125)  # 2^-9: no number lies nearer to 0
            x = ((x / step + 12582912.0) - 12582912.0) * step  # 1.5 * 2^23 leaves no digit behind the point
    return x.to(kind)


@triton.jit(do_not_specialize=["largest", "smallest"])
def quantised(
    x, out, scales, largest, smallest, width: tl.constexpr, block: tl.constexpr, emulated: tl.constexpr
):  # fmt: skip
    """out = x / scale in e4m3, scale [tokens]: a row's largest number becomes `largest`. One program a token."""
    token = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, block)
    there = column < width
    row = tl.load(x + token * width + column, mask=there, other=0.0).to(tl.float32)
    scale = tl.maximum(tl.max(tl.abs(row), 0) / largest, smallest)
    tl.store(scales + token, scale)
    tl.store(out + token * width + column, cut(row * (1.0 / scale), out.dtype.element_ty, emulated), mask=there)


INTERPRETED = not isinstance(quantised, triton.JITFunction)
"""True if TRITON_INTERPRET=1 was set when triton was loaded: then kernels run on CPU tensors, slowly."""


def warps(block: int) -> int:
    """Warps of a program that has a row of so many elements."""
    return 8 if block >= _WIDE else 4


def quantised_rows(x: Tensor) -> tuple[Tensor, Tensor]:
    """`gpu_backend.fp8.quantised_rows` in one kernel."""
    tokens, width = x.shape
    out, scales = torch.empty_like(x, dtype=E4M3), x.new_empty((tokens, 1), dtype=torch.float32)
    if tokens:
        block = triton.next_power_of_2(width)
        arguments = x.contiguous(), out, scales, LARGEST, SMALLEST_SCALE
        quantised[(tokens,)](*arguments, width=width, block=block, emulated=INTERPRETED, num_warps=warps(block))
    return out, scales
