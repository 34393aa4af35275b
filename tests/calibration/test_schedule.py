"""Joint attention fitted by the GPU's schedule, from few rows."""

import numpy as np
import pytest

from calibration.fit import joint_surface
from calibration.rows import make_table
from calibration.surface_fit import KernelLaunch, features, find_launch, joint, last_end
from simulator.hardware.gpus import find_gpu
from simulator.hardware.models import find_model
from simulator.timing.tables.table_schema import fill, steadiness

LAUNCH = KernelLaunch(heads=32, kv_heads=8, head_dim=128, sms=188, l2_bytes=128 << 20)


@pytest.mark.parametrize(
    ("seqs", "waves"), [(1, 1), (4, 1), (5, 2), (10, 2), (11, 3), (22, 4), (63, 11)]
)  # (seqs + 1) x 32 blocks on 188 SMs
def test_equal_blocks_run_in_waves(seqs: int, waves: int) -> None:
    assert last_end(32, 188, 0.0, 64, 960, seqs, 1024) == 1024 * waves


def test_blocks_are_padded_and_start_up() -> None:
    assert last_end(1, 10, 5.0, 1, 0, 1, 65) == 128 + 5
    assert last_end(1, 1, 5.0, 65, 0, 0, 0) == (64 + 5) + (128 + 5)


def test_short_blocks_fill_what_long_ones_leave() -> None:
    assert last_end(1, 2, 0.0, 1, 63, 3, 128) == 256  # two long ones, then the third and the short one
    assert last_end(1, 2, 0.0, 1, 255, 2, 64) == 64 + 256  # the prompt comes last


def test_keys_beyond_the_cache_are_read_for_each_head_that_runs_apart() -> None:
    places = [np.array([64.0, 64.0]), np.zeros(2), np.array([128.0, 32.0]), np.array([4096.0, 16384.0])]
    apart, together = features(LAUNCH, places, 0.0)["bytes"] / 4.096
    assert apart == pytest.approx(128 * 4096 / (188 / 128 / 4) + 64)
    assert together == pytest.approx(32 * 16384 + 64)


def test_only_kernels_that_are_known_have_a_launch() -> None:
    model = find_model("llama-3.1-8b")
    assert find_launch(model, find_gpu("rtx-pro-6000"), 2) == KernelLaunch(16, 4, 128, 188, 128 << 20)
    assert find_launch(model, find_gpu("h200"), 1) is None


def _measured(places: list[np.ndarray]) -> np.ndarray:
    found = features(LAUNCH, places, 100.0)
    return np.asarray(4.0 + 0.07 * found["tiles"] + np.hypot(0.021 * found["waves"], 4e-4 * found["bytes"]))


def test_twenty_rows_tell_a_whole_table() -> None:
    random = np.random.default_rng(0)
    places = [np.exp2(random.integers(*span, 220).astype(np.float64)) for span in ((4, 10), (4, 11), (0, 6), (4, 12))]
    us = _measured(places)
    names = ("chunk", "cached", "seqs", "context")
    columns = {name: column[:20] for name, column in zip(names, places, strict=True)}
    table = make_table("attention", {**columns, "us": us[:20]})
    rest = [column[20:] for column in places]
    errors = []
    for launch in (LAUNCH, None):
        surface, knee = joint_surface(table, launch)
        errors.append(np.abs(surface.us_many(rest, joint(knee).features(*rest)) / us[20:] - 1.0).mean())
    assert errors[0] < 0.03
    assert errors[0] < 0.6 * errors[1]


def test_holes_follow_the_axis_that_varies_less() -> None:
    table = np.add.outer(np.array([0.0, 5.0, -5.0, 5.0]), 0.01 * np.arange(5.0))
    broken = table.copy()
    broken[1, 2] = np.nan
    assert fill(broken, steadiness(broken))[1, 2] == pytest.approx(table[1, 2], abs=0.01)
    assert fill(broken)[1, 2] < 3.0
