import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reports.units import clock_for, decimals, intervals, latency, number, one_line, short, tied

FINITE = st.floats(allow_nan=False, allow_infinity=False, min_value=-1e12, max_value=1e12)


@pytest.mark.parametrize(
    ("values", "places"),
    [
        ([1, 20, 300], 0),
        ([1.5, 300.0], 2),
        ([15.5, 300.0], 1),
        ([155.5], 0),
        ([0.155], 3),
        ([0.0, 0.02], 3),
        ([24.6, 631506.3], 0),
    ],
)
def test_decimals(values: list[float], places: int) -> None:
    assert decimals(values) == places


def test_decimals_of_nothing() -> None:
    assert decimals([]) == 0
    assert decimals([math.nan, 0.0]) == 0


@pytest.mark.parametrize(
    ("value", "places", "text"),
    [(1234567.0, 0, "1,234,567"), (-0.001, 1, "0.0"), (-12.34, 1, "-12.3"), (math.nan, 2, "-"), (math.inf, 2, "-")],
)
def test_number(value: float, places: int, text: str) -> None:
    assert number(value, places) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.04214, "0.0421"), (3.14159, "3.14"), (31.4159, "31.4"), (314.159, "314"), (3141.59, "3,142"), (0.0, "0")],
)
def test_short(value: float, text: str) -> None:
    assert short(value) == text


@given(FINITE)
def test_short_is_near(value: float) -> None:
    read = float(short(value).replace(",", ""))
    assert abs(read - value) <= max(0.005 * abs(value), 5e-7)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (24.64, "24.6 ms"),
        (9120.4, "9,120 ms"),
        (35431.0, "35.4 s"),
        (600e3, "600 s"),
        (4124094.0, "68.7 min"),
        (4e7, "11.1 h"),
    ],
)
def test_latency(value: float, text: str) -> None:
    assert latency(value) == text


@pytest.mark.parametrize(
    ("to_s", "from_s", "unit"), [(599.0, 0.0, "s"), (3600.0, 3590.0, "s"), (3600.0, 0.0, "min"), (20000.0, 0.0, "h")]
)
def test_clock(to_s: float, from_s: float, unit: str) -> None:
    assert clock_for(to_s, from_s).unit == unit


def test_one_line() -> None:
    assert one_line("a\n b\tc\x07", 20) == "a b c"
    assert one_line("abcdef", 4) == "abc…"


def test_tied_parts_no_number_from_its_unit() -> None:
    assert tied("(43.8 %) in 5 ms, 3 seeds, 4 sheep") == "(43.8\u00a0%) in 5\u00a0ms, 3\u00a0seeds, 4 sheep"


def test_intervals_that_look_even_are_half_widths() -> None:
    assert intervals([(10.0, 9.0, 11.0), (5.0, 4.5, 5.5), (1.0, None, None)], 1) == ["± 1.0", "± 0.5", ""]
    assert intervals([(100.0, 80.0, 120.0), (5.0, 4.0, 6.0)]) == ["± 20", "±  1"]
    assert intervals([(1.0, None, None)]) == [""]


def test_intervals_that_do_not_show_their_ends() -> None:
    assert intervals([(81.8, 29.7, 97.9), (5.0, 4.0, 6.0), (1.0, None, None)], 1) == [
        "[29.7, 97.9]",
        "[ 4.0,  6.0]",
        "",
    ]
    assert intervals([(81.8, 81.79, 81.83)], 1) == ["± 0.0"]
