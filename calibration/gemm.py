"""Matrix products of any size from a table of sizes, and the products that a transformer's layer consists of."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from calibration.curves import make_curve
from calibration.physics_fit import Shape
from calibration.rows import Table
from calibration.surface_fit import Kernel, fit_surface
from simulator.hardware.models import Model
from simulator.timing.profile.surface import Curve, Surface

Array = NDArray[np.float64]

TILE_M, TILE_N, SMALL_M = 128, 128, 64
BF16_BYTES = 2

SMALLEST = 1024
"""Products narrower than this in n or k are of no layer of a served model: they are left out of the fit."""


def features(m: Array, n: Array, k: Array) -> Mapping[str, Array]:
    """Operations with m padded to the tile, bytes moved, and the steps of the k loop of one tile."""
    tile = np.where(m <= SMALL_M, 16, SMALL_M)
    padded = np.ceil(m / tile) * tile
    return {
        "flops": 2e-6 * padded * n * k,
        "bytes": 1e-3 * BF16_BYTES * (n * k + m * k + m * n),
        "depth": k,
    }


GEMM = Kernel(("m", "n", "k"), Shape(("depth",), (("flops",), ("bytes",))), features)
"""flops in units of 10^6, bytes in 10^3."""


def gemm_surface(table: Table) -> Surface:
    """Products over (m, n, k)."""
    chosen = (table["n"] >= SMALLEST) & (table["k"] >= SMALLEST)
    return fit_surface(GEMM, [table[name][chosen] for name in ("m", "n", "k")], table["us"][chosen])


def gemm_curve(surface: Surface, n: float, k: float, sizes: Array) -> Curve:
    """One product's times over m."""
    m = np.asarray(sizes, dtype=np.float64)
    n_, k_ = np.full_like(m, n), np.full_like(m, k)
    return make_curve(m, surface.us_many((m, n_, k_), features(m, n_, k_)))


def layer_products(model: Model, ranks: int) -> dict[str, tuple[int, int]]:
    """(n, k) of the products of one layer on one of `ranks` GPUs; those of experts are not among them."""
    heads, kv_heads = model.heads // ranks, model.local_kv_heads(ranks)
    products = {
        "qkv": ((heads + 2 * kv_heads) * model.head_dim, model.hidden),
        "output_projection": (model.hidden, heads * model.head_dim),
    }
    if not model.experts:
        wide = -(-model.intermediate // ranks)
        products["gate_up"] = ((2 if model.gated_mlp else 1) * wide, model.hidden)
        products["down"] = (model.hidden, wide)
    return products
