"""Times with a cold cache, as in a served model, from rows that were measured again and again on the same operands.

A repeated kernel finds in the L2 cache what it read the time before, as far as that fits; in a model the weights and
the keys of all other layers pass through the cache in between. So rows whose weights or keys the cache holds are too
fast: on RTX PRO 6000 decodes of 67 MB of keys take 40 us where 62 were measured with the cache cold (LLMServingSim), on
L40S 35 where twice as many bytes take 219. What reading them from memory adds is put back:

- decodes read their keys at the pace that larger batches reach, and not at that of the batches which the cache holds:
  bytes x the difference of both is added;
- a product takes at least what its weights' way from memory takes: a line through products of few rows, with weights
  beyond the cache.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from simulator.hardware.gpus import Gpu
from simulator.timing.profile.surface import Array

if TYPE_CHECKING:
    import pandas as pd


FEWEST = 8  # a pace (time a byte) is taken from at least so many pairs of rows
FAR = 2.0  # the cache holds nothing of rows of this many times its size
FARTHEST = 8.0  # products of up to this many times the cache's size give the pace for smaller ones

FEW_ROWS, FEWEST_SIZES = 64, 6
"""Products of at most this many rows wait for their weights; a line is fitted to at least this many sizes."""

LAUNCHES = 2.0  # a line is used if its time at 0 bytes is at most this many times that of the shortest products
NEAR = 1 / 16  # below this share of the cache's size, launches take the time

COPIES = {"bf16": 6, "fp8": 6, "fp8_block": 1, "nvfp4": 1}
"""Equal layers with weights of their own that the source ran one after another (collector/vllm/collect_gemm.py)."""


@dataclass(frozen=True, slots=True)
class Cold:
    """Times (us) of reading from memory, and a mask of the times that were changed."""

    us: Array
    changed: NDArray[np.bool_]


def cold_decodes(rows: pd.DataFrame, key_bytes: Array, gpu: Gpu) -> Cold:
    """Bring decodes of one head width and KV precision to a cold cache: heads, kv_heads, window, batch, length, us."""
    us = rows["us"].to_numpy(float)
    held = key_bytes <= gpu.l2_mib * 2**20
    if not held.any():
        return Cold(us, held)
    near, far = _paces(rows, key_bytes, gpu.l2_mib * 2**20)
    if far is None:
        far = 1e-3 / gpu.bandwidth_gb_s
    more = max(0.0, far - (near or 0.0))
    return Cold(us + np.where(held, key_bytes * more, 0.0), held)


def cold_products(us: Array, m: Array, weights: Array, precision: str, gpu: Gpu, engine: str = "vllm") -> Cold:
    """Bring products of `m` rows, with weights of so many bytes, to a cold cache."""
    copies = COPIES[precision] if engine == "vllm" else max(COPIES.values())
    times = weights * copies / max(gpu.l2_mib * 2**20, 1.0)  # the cache's size
    held, beyond = times <= 1.0, (m <= FEW_ROWS) & (times > FAR) & (times <= FARTHEST)
    sizes = np.unique(weights[beyond])
    if gpu.l2_mib == 0 or len(sizes) < FEWEST_SIZES:
        return Cold(us, np.zeros(len(us), dtype=bool))
    typical = np.array([np.median(us[beyond & (weights == size)]) for size in sizes])
    pace, first = np.polyfit(sizes, typical, 1)
    launch = float(np.quantile(us, 0.01))
    least = max(float(first), launch) + weights * pace
    if not 0.0 <= first <= LAUNCHES * launch:  # not memory alone that these wait for
        least = weights * float(np.median(typical / sizes))
    slow = held & (us < least)
    return Cold(np.where(slow, least, us), slow)


def _paces(rows: pd.DataFrame, key_bytes: Array, cache: float) -> tuple[float | None, float | None]:
    """Microseconds a byte that the cache holds, and a byte that it does not: by pairs of rows with doubled contexts."""
    frame = rows.assign(bytes=key_bytes)
    frame = frame[frame["window"] == 0].sort_values(["heads", "kv_heads", "batch", "length"])
    same = (frame[["heads", "kv_heads", "batch"]].diff() == 0).all(axis=1).to_numpy()
    before, after = frame["bytes"].shift().to_numpy(float), frame["bytes"].to_numpy(float)
    pace = frame["us"].diff().to_numpy(float) / np.where(after > before, after - before, np.nan)
    near, far = same & (after <= cache) & (before >= NEAR * cache), same & (before >= FAR * cache)
    return _median(pace[near]), _median(pace[far])


def _median(values: Array) -> float | None:
    return float(np.nanmedian(values)) if len(values) >= FEWEST else None
