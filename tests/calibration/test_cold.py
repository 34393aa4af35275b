"""Rows that were measured with a warm cache: what reading from memory adds, and what is left as it is."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from calibration.cold import cold_decodes, cold_products
from calibration.tables_rows import product_rows
from simulator.hardware.gpus import GPUS

pd = pytest.importorskip("pandas")

GPU = replace(GPUS["rtx-pro-6000"], l2_mib=64.0)
MEMORY, CACHE = 1500.0, 4000.0
LAUNCH_US = 10.0


def decodes() -> tuple[object, np.ndarray]:
    """Decodes whose keys come from the cache where it holds them, at a pace of its own; and the bytes of keys."""
    rows = pd.DataFrame(
        {"heads": 32, "kv_heads": 8, "window": 0, "batch": batch, "length": length}
        for batch in (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0) for length in (256.0 * 2**i for i in range(9))
    )  # fmt: skip
    key_bytes = (rows["batch"] * rows["length"] * 4096.0).to_numpy()
    pace = np.where(key_bytes <= GPU.l2_mib * 2**20, CACHE, MEMORY)
    return rows.assign(us=LAUNCH_US + key_bytes / (pace * 1e3)), key_bytes


def test_decodes_read_their_keys_from_memory_again() -> None:
    rows, key_bytes = decodes()
    cold = cold_decodes(rows, key_bytes, GPU)  # type: ignore[arg-type]
    held = key_bytes <= GPU.l2_mib * 2**20
    assert (cold.changed == held).all()
    # Paces are medians over pairs of rows: those across the edge of the cache are none of them.
    assert cold.us[held] == pytest.approx((LAUNCH_US + key_bytes / (MEMORY * 1e3))[held], rel=1e-6)
    assert (cold.us[~held] == rows["us"].to_numpy()[~held]).all()  # type: ignore[index]


def test_nothing_is_added_where_the_cache_is_not_known() -> None:
    rows, key_bytes = decodes()
    cold = cold_decodes(rows, key_bytes, replace(GPU, l2_mib=0.0))  # type: ignore[arg-type]
    assert not cold.changed.any()
    assert (cold.us == rows["us"].to_numpy()).all()  # type: ignore[index]


def test_a_product_takes_its_launch_and_its_weights_way_at_least() -> None:
    weights = np.array([1e4, 4e6, 11e6, 200e6, 400e6])
    us = np.array([3.0, 4.0, 30.0, 3.0 + 200e6 / 1.5e6, 3.0 + 400e6 / 1.5e6])
    cold = cold_products(us, weights, "bf16", GPU)
    assert cold.changed.tolist() == [True, True, False, False, False]
    assert cold.us[:2] == pytest.approx([3.0, 3.0 + 4e6 / 1.5e6], rel=0.02)
    assert (cold.us[2:] == us[2:]).all()
    alone = cold_products(us, weights, "nvfp4", GPU)  # one layer, not six after another: a larger one stays there
    assert not alone.changed[2]
    assert cold_products(us, np.array([1e4, 4e6, 60e6, 2e8, 4e8]), "nvfp4", GPU).changed[2]


def test_a_disturbed_row_goes_and_a_kernel_that_is_slow_for_one_row_stays() -> None:
    sizes = (1, 2, 4, 8, 16, 32, 64, 128, 256)
    us = {m: 20.0 + 0.1 * m for m in sizes} | {1: 60.0, 8: 60.0}
    rows = pd.DataFrame(
        {"gemm_dtype": "bfloat16", "m": m, "n": 4096, "k": 4096, "latency": us[m] * 1e-3} for m in sizes
    )
    notes: dict[str, dict[str, object]] = {"rejected": {}, "disturbed": {}, "cold": {}}
    kept = product_rows(rows, GPUS["h100"], notes)
    assert kept["m"].tolist() == [1, 2, 4, 16, 32, 64, 128, 256]
    assert notes["disturbed"] == {"products bf16": [1, 9]}
