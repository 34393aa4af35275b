"""A surface of matrix products from a table of sizes."""

from __future__ import annotations

from functools import partial

import numpy as np
from numpy.typing import NDArray

from calibration.physics_fit import Shape
from calibration.rows import Table
from calibration.surface_fit import Kernel, fit_surface
from simulator.timing.profile.surface import Array, Surface
from simulator.timing.tables.products import WEIGHT_BYTES, product_features

SMALLEST = 1024  # no layer of a served model has products narrower than this in n or k: they are left out of the fit


def gemm_kernel(precision: str = "bf16") -> Kernel:
    """Matrix products with weights of that precision."""
    features = partial(product_features, weight_bytes=WEIGHT_BYTES[precision])
    return Kernel(("m", "n", "k"), Shape(("depth",), (("flops",), ("bytes",))), features)


GEMM = gemm_kernel()


def stands_for(name: str, m: Array) -> NDArray[np.bool_]:
    """Which sizes m a precision's table holds for: with fp8_block 1, 2 and multiples of 4, to which batches are padded.

    In the source (vLLM 0.19 on H100) other sizes take another path, which costs a fifth more.
    """
    return np.asarray((m % 4 == 0) | (m <= 2) if name == "fp8_block" else m > 0)


def gemm_surface(table: Table) -> Surface:
    """Fit products over (m, n, k)."""
    chosen = (table["n"] >= SMALLEST) & (table["k"] >= SMALLEST)
    return fit_surface(GEMM, [table[name][chosen] for name in ("m", "n", "k")], table["us"][chosen])
