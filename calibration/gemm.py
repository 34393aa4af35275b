"""A surface of matrix products from a table of sizes."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import numpy as np
from numpy.typing import NDArray

from calibration.physics_fit import Shape
from calibration.rows import Table
from calibration.surface_fit import Kernel, fit_surface
from simulator.timing.profile.surface import Surface
from simulator.timing.tables.products import WEIGHT_BYTES, product_features

Array = NDArray[np.float64]

SMALLEST = 1024
"""Products narrower than this in n or k are of no layer of a served model: they are left out of the fit."""


def _features(m: Array, n: Array, k: Array, weight_bytes: float) -> Mapping[str, Array]:
    return product_features(m, n, k, weight_bytes)


def gemm_kernel(precision: str = "bf16") -> Kernel:
    """Products whose weights are of that precision."""
    features = partial(_features, weight_bytes=WEIGHT_BYTES[precision])
    return Kernel(("m", "n", "k"), Shape(("depth",), (("flops",), ("bytes",))), features)


GEMM = gemm_kernel()


def stands_for(name: str, m: Array) -> NDArray[np.bool_]:
    """The rows that a precision's table stands for: of fp8_block, 1, 2 and multiples of 4, as batches are padded to.

    Others take another way in the source (vLLM 0.19 on H100), which costs a fifth more.
    """
    return np.asarray((m % 4 == 0) | (m <= 2) if name == "fp8_block" else m > 0)


def gemm_surface(table: Table) -> Surface:
    """Products over (m, n, k)."""
    chosen = (table["n"] >= SMALLEST) & (table["k"] >= SMALLEST)
    return fit_surface(GEMM, [table[name][chosen] for name in ("m", "n", "k")], table["us"][chosen])
