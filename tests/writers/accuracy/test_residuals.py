"""Residuals that intervals are made of: quantiles of cells, and their coverage of what was left out."""

import math
from dataclasses import replace

import numpy as np
import pytest

from docs.writers.accuracy.residuals import (
    KEYS,
    TIMES,
    document,
    fitted_times,
    left_out,
    log_ratios,
    quantiles,
    strata_of,
    usable,
)
from docs.writers.accuracy.served import Row
from docs.writers.accuracy.served_score import Scored
from scenarios.prediction.residuals import FILE, METRICS, shipped_residuals

ROW = Row("a", "vllm", "0.19.0", "org/model", "h200_sxm", "fp8", 512, 64, 4, 4, 1, 1, 1, 60.0, 14.0)
TPOT = METRICS[1]


def scored(cells: int, rows: int, spread: float, seed: int = 0) -> list[Scored]:
    """Rows of cells with an error of their own each, and a smaller one of each row."""
    rng = np.random.default_rng(seed)
    found = []
    for cell in range(cells):
        own = rng.normal(0.0, spread)
        row = replace(
            ROW, model=f"org/m{cell}", version=f"0.{cell}", system=f"gpu{cell}", engine=("vllm", "sglang")[cell % 2]
        )
        for _ in range(rows):
            error = math.exp(own + rng.normal(0.0, spread / 4)) - 1.0
            found.append(Scored(row, error, error, e2e=error, basis="measured", batch=4.0))
    return found


def test_a_residual_is_measured_over_predicted() -> None:
    assert log_ratios([Scored(ROW, 0.25)], TPOT) == pytest.approx([math.log(0.8)])
    kept = usable([Scored(ROW, 0.1, e2e=0.1), Scored(ROW, refused="no"), Scored(ROW, contradiction="drafts")])
    assert len(kept) == 1


def test_a_cell_with_many_rows_counts_as_some() -> None:
    large = [Scored(ROW, 0.0, 0.0, e2e=0.0, batch=4.0)] * 400
    small = [Scored(replace(ROW, model="org/b"), 1.0, 1.0, e2e=1.0, batch=4.0)] * 40
    low, high = quantiles([*large, *small], TPOT, [0.4, 0.6])  # half of the weight each, not an eleventh
    assert (low, high) == pytest.approx((math.log(0.5), 0.0), abs=0.01)


def test_intervals_are_widened_until_what_was_left_out_lies_in_them() -> None:
    rows = scored(24, 12, 0.2)
    plain = left_out(rows, TPOT, KEYS["model"], 1.0)
    times = fitted_times(rows, TPOT)
    wide = left_out(rows, TPOT, KEYS["model"], times)
    assert plain.overall < 0.9
    assert 1.0 < times <= TIMES[-1]
    assert plain.overall < wide.overall
    assert wide.width > plain.width
    alike = scored(24, 12, 1e-6)
    assert left_out(alike, TPOT, KEYS["model"], 1.0).width == pytest.approx(1.0, abs=1e-4)


def test_an_engine_that_is_left_out_takes_what_is_known_of_others() -> None:
    rows = scored(24, 12, 0.2)
    assert {"vllm", "sglang", "any", "any, up to 8", "vllm, up to 8", "sglang, up to 8"} == set(strata_of(rows))
    assert left_out(rows, TPOT, KEYS["engine"], 1.5).groups.keys() == {"vllm", "sglang"}


def test_the_document_says_how_it_was_tested() -> None:
    found = document(scored(12, 12, 0.2), scored(4, 12, 0.5, seed=1))
    assert found["rows"] == 144
    assert found["strata"]["roofline"][TPOT][0] < 0.0 < found["strata"]["roofline"][TPOT][-1]
    assert found["wider"]["measured"] == 1.0 < found["wider"]["extrapolated"] <= found["wider"]["roofline"]
    assert set(found["tested"][TPOT]) == {"model", "GPU", "version", "engine"}


def test_the_shipped_intervals_hold_nine_of_ten_of_what_was_left_out() -> None:
    import json

    assert shipped_residuals().rows > 700
    tested = json.loads(FILE.read_text(encoding="utf-8"))["tested"]
    for ways in tested.values():
        shares = [way["coverage"] for way in ways.values()]
        assert 0.87 <= sum(shares) / len(shares) <= 0.93
        assert all(0.86 <= share <= 0.94 for share in shares)
        assert all(share >= 0.8 for way in ways.values() for _, share in way["groups"].values())


def test_a_stratum_is_of_several_cells() -> None:
    """The five cells of each engine say less of how cells differ than all ten do, for all their 200 rows."""
    assert set(strata_of(scored(10, 40, 0.2))) == {"any", "any, up to 8"}
