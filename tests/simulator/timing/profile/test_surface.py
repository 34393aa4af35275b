import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.timing.arithmetic import FADE_OCTAVES, find
from simulator.timing.profile.surface import Curve, Physics, Surface, SurfaceAxis

PLAIN = Physics(10.0, (("a", 1.0),), ((("b", 2.0),), (("c", 3.0),)), 2.0)
AXES = (SurfaceAxis("x", (1.0, 4.0, 16.0)), SurfaceAxis("y", (0.0, 8.0)), SurfaceAxis("z", (5.0,)))
TABLE = (0.1, -0.2, 0.3, 0.0, -0.1, 0.2)


def surface() -> Surface:
    return Surface(AXES, PLAIN, TABLE)


def features(x: Any, y: Any, z: Any) -> dict[str, Any]:
    return {"a": x, "b": y, "c": z}


def test_physics_adds_terms_and_the_norm_of_its_roofs() -> None:
    assert PLAIN.us({"a": 4.0, "b": 1.5, "c": 4 / 3}) == pytest.approx(10 + 4 + 5)
    assert Physics(1.0).us({}) == 1.0
    assert Physics(1.0, (), ((("a", 2.0), ("b", 3.0)),)).us({"a": 1.0, "b": 1.0}) == 6.0


def test_a_surface_is_the_table_where_it_was_measured() -> None:
    found = surface()
    place = iter(TABLE)
    for x in (1.0, 4.0, 16.0):
        for y in (0.0, 8.0):
            physics = PLAIN.us(features(x, y, 5.0))
            assert found.lookup("abc").us((x, y, 5.0), (x, y, 5.0)) == pytest.approx(physics * math.exp(next(place)))


def test_between_cells_the_correction_is_between_theirs() -> None:
    found = surface()
    halfway = math.exp(0.5 * (math.log(2.0) + math.log(5.0))) - 1.0  # on the axis log(1 + x)
    us = found.lookup("abc").us((halfway, 0.0, 5.0), (halfway, 0.0, 5.0))
    assert us == pytest.approx(PLAIN.us(features(halfway, 0.0, 5.0)) * math.exp(0.5 * (0.1 + 0.3)))


@given(st.floats(0, 1e4), st.floats(0, 1e3), st.floats(0.1, 1e3))
def test_one_place_and_many_agree(x: float, y: float, z: float) -> None:
    found = surface()
    many = found.us_many((np.array([x]), np.array([y]), np.array([z])), features(np.array([x]), np.array([y]), z))
    assert found.lookup("abc").us((x, y, z), (x, y, z)) == pytest.approx(float(many[0]), rel=1e-9)


def test_far_outside_only_physics_speaks() -> None:
    found = surface()
    far = 16.0 * 2**FADE_OCTAVES
    assert found.lookup("abc").us((far, 8.0, 5.0), (far, 8.0, 5.0)) == PLAIN.us(features(far, 8.0, 5.0))
    near = 16.0 * 2 ** (FADE_OCTAVES / 2)
    us = found.lookup("abc").us((near, 8.0, 5.0), (near, 8.0, 5.0))
    assert us == pytest.approx(PLAIN.us(features(near, 8.0, 5.0)) * math.exp(0.2 / 2))


def test_a_curve_pads_to_its_tile_and_draws_lines_elsewhere() -> None:
    curve = Curve((1.0, 16.0, 32.0, 2048.0), (5.0, 6.0, 9.0, 90.0), 0.5, tile=16.0)
    assert [curve.at(count) for count in (0, 1, 2, 16, 17, 32)] == [0.0, 5.0, 6.0, 6.0, 9.0, 9.0]
    assert curve.at(1040) == pytest.approx(49.5)
    assert curve.at(2050) == 91.0


@pytest.mark.parametrize(("value", "found"), [(-1.0, (0, 0.0)), (1.0, (0, 0.0)), (4.0, (1, 0.0)), (99.0, (1, 1.0))])
def test_an_axis_finds_the_cell(value: float, found: tuple[int, float]) -> None:
    assert find(AXES[0].knots, value) == found
