"""Matrix products of any size from a surface over (m, n, k), and those that a transformer's layer consists of."""

from collections.abc import Collection, Mapping
from dataclasses import replace
from functools import lru_cache

import numpy as np

from simulator.hardware.model import MAMBA
from simulator.hardware.models import Model
from simulator.timing.formula_cost import ACTIVATION_BYTES
from simulator.timing.profile.surface import Array, Curve, Surface, SurfaceAxis, flat, make_curve, mesh
from simulator.timing.tables.table_schema import Tables, read_tables

REFERENCE = "h100-vllm-0.19"
HOPPER = ("h100", "h200", "h20")
BLOCKS, PLAIN = "fp8_block", "fp8"
SMALL_M = 64
TILE_ROWS = 16  # of the smallest tile
WEIGHT_BYTES = {"bf16": 2, "fp8": 1, "fp8_block": 1, "nvfp4": 0.5625}
"""Bytes of a weight, by the precision of the product; what goes in and comes out has 2 in all of them.

A product of fp8 or nvfp4 holds the quantisation of its input: vLLM's whole layer was measured, with static scales. The
kernel before it may do that work instead (`fuse_norm_quant` in vllm/config/vllm.py). Taken out of qkv, gate_up and down
as measured alone (scale_matrix_perf), steps come out 3 to 5 % shorter, and 60 runs on H200 are off by 4.7 % instead of
2.8 in the median: it stays in.
"""


def product_features(m: Array, n: Array, k: Array, weight_bytes: float = 2) -> Mapping[str, Array]:
    """Operations with m padded to the tile (10^6), bytes moved (10^3), and the steps of the k loop of one tile."""
    tile = np.where(m <= SMALL_M, TILE_ROWS, SMALL_M)
    padded = np.ceil(m / tile) * tile
    return {
        "flops": 2e-6 * padded * n * k,
        "bytes": 1e-3 * (weight_bytes * n * k + ACTIVATION_BYTES * (m * k + m * n)),
        "depth": k,
    }


def product_curve(surface: Surface, n: float, k: float, sizes: Array, weight_bytes: float = 2) -> Curve:
    """One product's times over m.

    One row takes no longer than two, which fill the same tile. Under vLLM 0.24 the source's products of fp8 on all four
    Blackwell GPUs take 14 us more with one row than with two, whatever their size: work of its own around the kernel.
    """
    m = np.asarray(sizes, dtype=np.float64)
    n_, k_ = np.full_like(m, n), np.full_like(m, k)
    us = surface.us_many((m, n_, k_), product_features(m, n_, k_, weight_bytes))
    if len(m) > 1 and m[0] == 1.0 and m[1] <= TILE_ROWS:
        us[0] = min(us[0], us[1])
    return make_curve(m, us)


def without_widths(surface: Surface, n: Collection[float], k: Collection[float]) -> Surface:
    """The surface without these widths, as if they had not been measured; its outermost ones stay."""
    grid = np.asarray(surface.correction).reshape([len(axis.values) for axis in surface.axes])
    axes = [surface.axes[0]]
    for place, dropped in ((1, n), (2, k)):
        axis = surface.axes[place]
        kept = [i for i, value in enumerate(axis.values) if value not in dropped or i in (0, len(axis.values) - 1)]
        grid = np.take(grid, kept, axis=place)
        axes.append(SurfaceAxis(axis.name, tuple(axis.values[i] for i in kept)))
    return Surface(tuple(axes), surface.physics, flat(grid))


@lru_cache(maxsize=8)
def with_blocks(tables: Tables) -> Tables:
    """The tables with estimated products of fp8_block; as they are where they have them, or nothing to go by.

    vLLM 0.24's rows of fp8_block on H100 and H200 take 60 us however small the product: they are left out of the
    tables. Those of vLLM 0.19 on H100 do not. A product is taken to be as much slower than the GPU's own one of plain
    fp8 as it is there at the same size. Where the rows of 0.24 on H200 last longer than a launch (above 150 us), that
    is 7 % above them by the median, 10 % off. It stands in for the feed-forwards beside experts of models whose
    attention and experts are measured in fp8_block; on B200 it is 22 % off, and not used.
    """
    path = None if tables.folder is None else tables.folder / f"{REFERENCE}.json.gz"
    if BLOCKS in tables.products or PLAIN not in tables.products or tables.gpu not in HOPPER:
        return tables
    if path is None or not path.exists():
        return tables
    known, own = read_tables(path).products, tables.products[PLAIN]
    m, n, k = mesh(own.axes)
    features = product_features(m, n, k, WEIGHT_BYTES[PLAIN])
    slower = np.log(known[BLOCKS].us_many((m, n, k), features) / known[PLAIN].us_many((m, n, k), features))
    surface = Surface(own.axes, own.physics, flat(np.asarray(own.correction) + slower.ravel()))
    estimated = {**tables.document.get("estimated", {}), BLOCKS: f"as much slower than fp8 as in {REFERENCE}"}
    products, document = {**tables.products, BLOCKS: surface}, {**tables.document, "estimated": estimated}
    return replace(tables, products=products, document=document)


def layer_products(model: Model, ranks: int) -> dict[str, tuple[int, int]]:
    """(n, k) of the products of one layer on one of `ranks` GPUs; of feed-forwards, only those of a dense model.

    Those of latent attention are not among them: they are measured with it.
    """
    products: dict[str, tuple[int, int]] = {}
    if not model.kv_lora_rank:
        heads, kv_heads = model.heads // ranks, model.local_kv_heads(ranks)
        queries = (2 if model.attention_gate else 1) * heads
        products["qkv"] = ((queries + 2 * kv_heads) * model.head_dim, model.hidden)
        products["output_projection"] = (model.hidden, heads * model.head_dim)
    if not model.experts:
        products |= feed_forward(model, model.intermediate, ranks)
    return products


def linear_products(model: Model, ranks: int) -> dict[str, tuple[int, int]]:
    """(n, k) of the products of a layer with linear attention; that of decay and rate, a few columns, counts with it.

    On one of `ranks` GPUs: queries, keys, values and the gate, and the output.
    """
    heads = max(1, model.linear_value_heads // ranks)
    keys, values = max(1, model.linear_key_heads // ranks) * model.linear_head_dim, heads * model.value_head_dim
    rates = heads if MAMBA in model.layer_types else 2 * heads
    return {
        "linear_projection": (2 * keys + 2 * values + rates, model.hidden),
        "linear_output": (model.hidden, values),
    }


def feed_forward(model: Model, width: int, ranks: int) -> dict[str, tuple[int, int]]:
    """(n, k) of the products of a feed-forward so wide on one of `ranks` GPUs."""
    wide = -(-width // ranks)
    return {"gate_up": ((2 if model.gated_mlp else 1) * wide, model.hidden), "down": (model.hidden, wide)}
