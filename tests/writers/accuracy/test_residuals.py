"""Residuals that intervals are made of: quantiles of cells, and their coverage of what was left out."""

import math
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING

import numpy as np
import pytest

from docs.writers.accuracy.residuals import (
    TIMES,
    as_columns,
    coverages,
    document,
    fitted_times,
    needed_by,
    usable,
)
from docs.writers.accuracy.served_row import Row
from docs.writers.accuracy.served_score import Scored
from docs.writers.accuracy.spread import LEAST_WIDER, fitted_spread, log_ratios, quantiles, spreads, strata
from scenarios.prediction.prediction import FILE, METRICS, WARM, shipped_residuals

if TYPE_CHECKING:
    from docs.writers.accuracy.residuals import Tested

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
    values, cells = np.repeat([0.0, -1.0], [400, 40]), np.repeat(["a", "b"], [400, 40])
    low, high = quantiles(values, cells, [0.4, 0.6])  # half of the weight each, not an eleventh
    assert (low, high) == pytest.approx((-1.0, 0.0), abs=0.01)


def test_warm_servers_are_judged_without_cold_ones() -> None:
    cold = replace(ROW, engine="sglang", model="org/DeepSeek-R1", precision="fp4", version="")
    rows = as_columns([Scored(ROW, 0.1, 0.1), Scored(cold, 0.1, -0.9)])
    assert len(rows.of(METRICS[0])) == 2
    assert rows.of(WARM).ratios[WARM] == pytest.approx([-math.log(1.1)])


CELLS = 16
"""Half of them are of each engine: the fewest that make a stratum."""


@cache
def covered(spread: float) -> "Mapping[str, Tested]":
    """The coverages of rows of cells whose errors spread so far: each leaves every group out of every other."""
    return coverages(as_columns(scored(CELLS, 13, spread)), TPOT)


def test_intervals_are_widened_until_what_was_left_out_lies_in_them() -> None:
    rows = as_columns(scored(CELLS, 13, 0.2))
    found = needed_by(rows, TPOT)
    plain = np.mean([(times <= 1.0).mean() for way in found.values() for times, _ in way.values()])
    assert plain < 0.9
    assert 1.0 < fitted_times(found) <= TIMES[-1]
    assert covered(0.2)["model"].overall > plain
    alike = coverages(as_columns(scored(4, 12, 1e-6)), TPOT)
    assert alike["model"].width == pytest.approx(1.0, abs=1e-4)


def test_what_is_left_out_takes_no_part_in_its_own_test() -> None:
    """Were one model's errors ten times as large, the factor for the others would know, and its own would not."""
    rows = scored(24, 12, 0.2)
    worse = [replace(each, tpot=-0.9) if each.row.model == "org/m3" else each for each in rows]
    names = as_columns(rows).groups["model"] != "m3"
    before, after = (fitted_times(needed_by(as_columns(some).only(names), TPOT)) for some in (rows, worse))
    assert before == after
    assert fitted_times(needed_by(as_columns(worse), TPOT)) >= after


def test_an_interval_is_as_wide_as_errors_of_such_runs() -> None:
    careful, wild = scored(24, 20, 0.05), scored(24, 20, 0.4, seed=1)
    wild = [replace(each, row=replace(each.row, tensor_parallel=1), basis="extrapolated") for each in wild]
    rows = as_columns([*careful, *wild])
    spread = fitted_spread(rows, TPOT)
    assert 4.0 < spreads(rows, spread)[-1] / spreads(rows, spread)[0] < 10.0  # 8 times, drawn together a little
    assert "basis" in fitted_spread(rows, METRICS[0])


def test_no_basis_is_surer_than_a_surer_one() -> None:
    careful, wild = scored(24, 20, 0.05), scored(24, 20, 0.4, seed=1)
    rows = as_columns([*(replace(each, basis="extrapolated") for each in careful), *wild])
    found = [*fitted_spread(rows, TPOT)["basis"].values()]
    assert found == sorted(found)
    assert math.exp(found[2] - found[0]) == pytest.approx(LEAST_WIDER)  # though the errors are smaller there


def test_an_engine_that_is_left_out_takes_what_is_known_of_others() -> None:
    assert {"vllm", "sglang", "any"} == set(strata(as_columns(scored(CELLS, 13, 0.2))))
    assert covered(0.2)["engine"].groups.keys() == {"vllm", "sglang"}


def test_a_stratum_is_of_several_cells() -> None:
    """The five cells of each engine say less of how cells differ than all ten do, for all their 200 rows."""
    assert set(strata(as_columns(scored(10, 40, 0.2)))) == {"any"}


def test_the_document_says_how_it_was_tested() -> None:
    found = document(scored(6, 12, 0.2), scored(4, 12, 0.5, seed=1))
    assert found["rows"] == 72
    assert found["strata"]["roofline"][TPOT][0] < 0.0 < found["strata"]["roofline"][TPOT][-1]
    assert set(found["tested"][TPOT]) == {"model", "GPU", "version", "engine"}


def test_the_shipped_intervals_hold_nine_of_ten_of_what_was_left_out() -> None:
    import json

    assert shipped_residuals().rows > 700
    for ways in json.loads(FILE.read_text(encoding="utf-8"))["tested"].values():
        assert all(0.87 <= round(way["coverage"], 2) <= 0.93 for way in ways.values())
        shares = [share for way in ways.values() for _, share in way["groups"].values()]
        assert min(shares) >= 0.8
