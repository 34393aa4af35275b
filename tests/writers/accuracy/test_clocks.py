"""What tables say of clocks: rates of products, and steps that were timed twice."""

import numpy as np
import pytest

from calibration.rows import make_table
from docs.writers.accuracy.clocks import clock_of, highest_rate, later
from tests.shared_data import shared
from tools.tables.profiles import SHIPPED


def test_the_highest_rate_is_of_one_row_of_one_product() -> None:
    rows = {"op": np.array(["qkv", "qkv", "norm"]), "tokens": [10.0, 100.0, 100.0], "us": [2.0, 5.0, 0.001]}
    assert highest_rate(make_table("dense", rows), {"qkv": (30, 20)}) == pytest.approx(2 * 100 * 30 * 20 / 5e-6)


def test_what_was_timed_twice_is_compared_by_what_bounds_it() -> None:
    places = {"chunk": [0.0, 0.0, 512.0], "cached": [0.0, 0.0, 0.0], "seqs": [64.0, 1.0, 8.0],
              "context": [1024.0, 16.0, 128.0]}  # fmt: skip
    first = make_table("attention", {**places, "us": [100.0, 9.0, 50.0]})
    again = {
        **{name: np.array([*values, 7.0]) for name, values in places.items()},
        "us": np.array([101.0, 90.0, 55.0, 1.0]),
    }
    assert later(first, again) == pytest.approx((0.01, 0.1)), "decodes of few keys are bound by neither"


@pytest.mark.shared
@pytest.mark.parametrize("name", ["rtx-4090-llama-3.1-8b", "rtx-pro-6000-llama-3.1-8b"])
def test_the_clock_of_one_card_moved_and_it_alone_reaches_its_peak(name: str) -> None:
    [entry] = [entry for entry in SHIPPED if entry.name == name]
    clock, is_4090 = clock_of(entry, shared("measured/calibration")), "4090" in name
    assert abs(clock.read) < 0.001
    assert (clock.computed > 0.01) == is_4090
    assert (clock.rate > 0.9) == is_4090
