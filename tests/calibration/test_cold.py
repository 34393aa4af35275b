"""Rows that were measured with a warm cache: what reading from memory adds, and what is left as it is."""

import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from calibration.cold import cold_decodes, cold_products
from calibration.tabulate import product_rows
from simulator.hardware.gpus import GPUS

pd = pytest.importorskip("pandas")

GPU = replace(GPUS["rtx-pro-6000"], l2_mib=64.0)
MEMORY, CACHE = 1500.0, 4000.0
LAUNCH_US = 10.0


def decodes() -> tuple[Any, np.ndarray]:
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
    cold = cold_decodes(rows, key_bytes, GPU)
    held = key_bytes <= GPU.l2_mib * 2**20
    assert (cold.changed == held).all()
    # Paces are medians over pairs of rows: those across the edge of the cache are none of them.
    assert cold.us[held] == pytest.approx((LAUNCH_US + key_bytes / (MEMORY * 1e3))[held], rel=1e-6)
    assert (cold.us[~held] == rows["us"].to_numpy()[~held]).all()


def test_nothing_is_added_where_the_cache_is_not_known() -> None:
    rows, key_bytes = decodes()
    cold = cold_decodes(rows, key_bytes, replace(GPU, l2_mib=0.0))
    assert not cold.changed.any()
    assert (cold.us == rows["us"].to_numpy()).all()


def test_a_product_takes_its_weights_way_from_memory() -> None:
    beyond = np.array([30e6, 40e6, 50e6, 60e6, 70e6, 80e6])  # six copies of these are two to eight times the cache
    weights = np.array([1e5, 4e6, 11e6, 11e6, *beyond])
    memory = 3.0 + weights / 1.5e6
    us = np.array([2.0, 4.0, 30.0, 5.0, *memory[4:]])
    rows = np.array([1.0, 16.0, 16.0, 512.0, *[32.0] * 6])
    cold = cold_products(us, rows, weights, "bf16", GPU)
    assert cold.changed.tolist() == [True, True, False, True, *[False] * 6]
    assert cold.us[cold.changed] == pytest.approx(memory[cold.changed], rel=1e-6)
    assert (cold.us[~cold.changed] == us[~cold.changed]).all()


def test_a_product_that_waits_for_more_than_memory_takes_no_launch_of_a_line() -> None:
    """The line of larger products begins far above any launch: their pace alone is taken."""
    weights = np.array([1e6, 40e6, *np.linspace(150e6, 500e6, 6)])
    us = np.array([5.0, 60.0, *(100.0 + np.linspace(150e6, 500e6, 6) / 1e6)])
    cold = cold_products(us, np.full(8, 16.0), weights, "nvfp4", GPU)
    pace = float(np.median(us[2:] / weights[2:]))
    assert cold.us[:2] == pytest.approx([5.0, max(60.0, 40e6 * pace)])


def test_products_are_left_alone_where_the_cache_or_the_pace_is_not_known() -> None:
    weights, us = np.array([1e6, 2e6, 60e6]), np.array([1.0, 1.0, 50.0])
    for gpu in (GPU, replace(GPU, l2_mib=0.0)):
        assert not cold_products(us, np.ones(3), weights, "bf16", gpu).changed.any()


def test_a_disturbed_row_goes_and_a_kernel_that_is_slow_for_one_row_stays() -> None:
    sizes, widths = (1, 2, 4, 8, 16, 32, 64, 128, 256), (512, 1024, 2048, 4096, 8192)
    disturbed = {(8, 4096), (16, 4096), (64, 1024)}  # two of them side by side
    rows = pd.DataFrame(
        {"gemm_dtype": "bfloat16", "m": m, "n": n, "k": 4096,
         "latency": 1e-3 * (60.0 if m == 1 or (m, n) in disturbed else 20.0 + 0.1 * m)}
        for n in widths
        for m in sizes
    )  # fmt: skip
    notes: dict[str, dict[str, object]] = {"rejected": {}, "disturbed": {}, "cold": {}}
    kept = product_rows(rows, GPUS["h100"], notes)
    assert {*itertools.product(sizes, widths)} - {*zip(kept["m"], kept["n"], strict=True)} == disturbed
    assert notes["disturbed"] == {"products bf16": [3, 45]}
