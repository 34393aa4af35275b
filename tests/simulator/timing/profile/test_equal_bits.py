"""What is worked out together, or written out, is what it was one by one and in general: to the bit."""

from __future__ import annotations

from math import inf, nextafter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scenarios.profiles import shipped_profiles
from simulator.timing.cost import StepShape
from simulator.timing.profile import ProfileCost, read_profile
from simulator.timing.profile.arithmetic import find, mix, on_two_axes
from simulator.timing.profile.cost import KNOTS_PER_OCTAVE, LONGEST_KNOT, ROWS_TOGETHER
from simulator.timing.profile.surface import Axis
from tests.profile_maker import profile

ROWS = Axis("seqs", (1.0, 3.0, 16.0))
COLUMNS = Axis("context", (0.0, 8.0, 64.0, 4096.0))
TABLE = tuple(np.random.default_rng(7).normal(size=12).tolist())
VALUES = st.one_of(st.floats(0.0, 1e5), st.sampled_from([-1.0, 0.0, 1.0, 3.0, 8.0, 16.0, 64.0, 4096.0]))


def lines_of_one(cost: ProfileCost, seqs: int) -> tuple[list[float], list[float], list[float]]:
    """Bounds, seconds at nought and slopes of the lines of one number of decodes, worked out for it alone."""
    decode = cost.profile.attention.decode
    octaves = np.log2(LONGEST_KNOT)
    knots = np.unique(np.round(2.0 ** np.linspace(0.0, octaves, int(octaves * KNOTS_PER_OCTAVE) + 1)))
    knots = np.union1d(knots, np.asarray(decode.surface.axes[1].values)[1:])
    us = decode.us_many(np.broadcast_to(float(seqs), knots.shape), knots)
    seconds = cost.profile.layers * 1e-6 * us
    slope = np.diff(seconds) / np.diff(knots) / seqs
    first = seconds[:-1] - slope * knots[:-1] * seqs
    return [*(knots[1:-1] * seqs).tolist(), inf], first.tolist(), slope.tolist()


@pytest.mark.parametrize("name", ["made", "h200-llama-3.1-8b", "rtx-4090-llama-3.1-8b"])
def test_rows_tabulated_together_are_those_tabulated_alone(name: str) -> None:
    made = profile() if name == "made" else read_profile(shipped_profiles()[name])
    cost = ProfileCost(made)
    for seqs in (1, 2, 31, 32, 33, 100, 256, 257, 1000):
        cost.decode_run_s(StepShape(seqs, 300 * seqs), 1)
        row = cost._rows[seqs]
        assert (row.bounds, row.first_s, row.slope_s) == lines_of_one(cost, seqs)


def test_rows_do_not_depend_on_which_was_asked_for_first() -> None:
    forth, back = ProfileCost(profile()), ProfileCost(profile())
    for seqs in range(1, 2 * ROWS_TOGETHER + 1):
        forth.decode_run_s(StepShape(seqs, 300 * seqs), 1)
        back.decode_run_s(StepShape(2 * ROWS_TOGETHER + 1 - seqs, 300), 1)
    assert forth._rows == back._rows


@given(VALUES, VALUES)
def test_two_axes_written_out_are_the_general_case(row: float, column: float) -> None:
    (i, down), (j, right) = find(ROWS.knots, row), find(COLUMNS.knots, column)
    general = mix(TABLE, i * len(COLUMNS.values) + j, ((len(COLUMNS.values), down), (1, right)), 2)
    assert on_two_axes(TABLE, ROWS.knots, COLUMNS.knots, row, column) == general


def test_the_last_column_has_no_neighbour_beyond_its_row() -> None:
    beyond = nextafter(4096.0, inf)
    assert on_two_axes(TABLE, ROWS.knots, COLUMNS.knots, 1.0, beyond) == pytest.approx(TABLE[3])
    assert on_two_axes(TABLE, ROWS.knots, COLUMNS.knots, 99.0, 1e9) == pytest.approx(TABLE[11])
