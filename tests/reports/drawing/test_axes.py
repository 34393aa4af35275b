"""Axes that show the tail, curves that lie on each other, and one run that does not flatten the others."""

import re

import numpy as np
import pytest
from matplotlib.figure import Figure

from reports.picture import (
    coinciding,
    height,
    highest,
    log_times,
    look,
    plain_numbers,
    plain_times,
    said,
    styles,
    time_text,
)
from reports.plots.bars import latency_bars
from reports.plots.cdf import CdfCurve, cdf, quantities, top_percent
from reports.plots.timeline import Band, apart
from tests.columns import as_floats
from tests.reports.plots.test_pictures import everything

LOOK = styles([(name, name) for name in ("a", "b", "c")])


def test_each_nine_is_as_high_as_the_one_before() -> None:
    assert height(as_floats([0.0, 90.0, 99.0, 99.9])) == pytest.approx([0, 1, 2, 3])
    assert np.isfinite(height(as_floats([100.0]))).all()


@pytest.mark.parametrize(
    ("low", "high", "labels"),
    [
        (100.0, 113.0, ["102.5", "105.0", "107.5"]),
        (0.0, 11.0, ["0", "2", "4", "10"]),
        (0.0, 10_000.0, ["0", "2,000", "4,000", "6,000", "8,000", "10,000"]),
    ],
)
def test_a_label_says_where_its_tick_stands(low: float, high: float, labels: list[str]) -> None:
    axes = Figure().subplots()
    axes.set_xlim(low, high)
    plain_numbers(axes.xaxis)
    said = axes.xaxis.get_major_formatter().format_ticks(list(axes.xaxis.get_major_locator()()))
    assert {*labels} <= {*said}


@pytest.mark.parametrize(("samples", "top"), [(20, 99.0), (150, 99.0), (1000, 99.9), (10**6, 99.9)])
def test_no_percentile_is_drawn_that_no_sample_is_beyond(samples: int, top: float) -> None:
    ttft = quantities(None)[0]
    curve = CdfCurve("a", np.linspace(1.0, 5.0, 600), samples=samples)
    assert top_percent(ttft, [curve]) == top
    assert highest(samples) <= 100 * (1 - 1 / samples)


def test_the_axis_of_a_distribution_shows_the_tail() -> None:
    from reports.plots.cdf import GRID

    line = CdfCurve("a", np.linspace(1.0, 5.0, len(GRID)))
    ticks = everything(cdf(quantities(None)[0], [line], LOOK)).splitlines()
    assert {"50", "90", "95", "99", "99.9"} <= set(ticks)


def test_curves_that_coincide_are_said_to() -> None:
    at = np.linspace(1.0, 100.0, 50)
    groups = coinciding({"a": at, "b": at + 0.1, "c": at + 5.0}, 100.0)
    assert groups == [["a", "b"]]
    assert said(groups) == " a and b coincide."
    assert coinciding({"a": np.array([np.nan]), "b": np.array([1.0])}, 1.0) == []
    from reports.plots.cdf import GRID

    at = np.geomspace(1.0, 1e5, len(GRID))
    lines = [CdfCurve("a", at), CdfCurve("b", at), CdfCurve("c", at * 2)]
    caption = cdf(quantities(None)[0], lines, LOOK).caption
    assert "a and b coincide" in caption
    assert "c coincide" not in caption, "twice as long is far apart on a logarithmic axis"


def band(top: float) -> Band:
    values = as_floats([0.0, top])
    return Band(as_floats([0.0, 1.0]), values, values, values)


def test_one_run_does_not_flatten_the_others() -> None:
    assert apart({"a": band(3.0), "b": band(9.0), "c": band(2000.0)}) == 10.0
    assert apart({"a": band(30.0), "b": band(90.0)}) is None
    assert apart({"a": band(0.0), "b": band(5.0)}) is None, "a few requests need no axis of their own"
    assert apart({"a": band(2000.0)}) is None


@pytest.mark.parametrize(
    ("low", "high", "wanted"),
    [(10.0, 5e6, {"100 ms", "1 s", "10 s"}), (5.0, 400.0, {"10 ms", "100 ms"}), (6e4, 2e7, {"1 min", "1 h"})],
)
def test_log_axes_of_time_have_peoples_units(low: float, high: float, wanted: set[str]) -> None:
    with look():
        axes = Figure().subplots()
        log_times(axes.xaxis, low, high)
        axes.set_xlim(low, high)
        texts = {label.get_text() for label in axes.get_xticklabels()}
    assert wanted <= texts


def test_plain_axes_of_time_are_round_in_their_unit() -> None:
    with look():
        axes = Figure().subplots()
        plain_times(axes.xaxis, 150_000.0)
        axes.set_xlim(0, 150_000.0)
        texts = [label.get_text() for label in axes.get_xticklabels()]
    assert "1 min" in texts
    assert all(re.fullmatch(r"0|[\d.]+ min", text) for text in texts if text)
    assert [time_text(ms) for ms in (0.0, 200.0, 5e3, 6e5)] == ["0", "200 ms", "5 s", "10 min"]


def test_dots_stand_where_bars_would_have_no_zero() -> None:
    def runs(slow_ms: float) -> dict[str, list[dict[str, float]]]:
        return {"a": [{"p50_ttft_ms": 10.0}], "b": [{"p50_ttft_ms": slow_ms}]}

    bars, dots = (latency_bars(runs(slow), LOOK, None) for slow in (50.0, 4e6))
    assert "log scale" not in everything(bars)
    assert "Bars start at zero" in bars.caption
    assert "(log scale)" in everything(dots)
    assert "66.7 min" in everything(dots)
    assert "Dots stand on logarithmic axes" in dots.caption


def test_runs_of_one_policy_alone_are_coloured_in_order() -> None:
    found = [style.color for style in styles([(f"budget {i}", "chunked_prefill") for i in range(4)]).values()]
    light = [sum(int(color[at : at + 2], 16) * weight for at, weight in ((1, 3), (3, 6), (5, 1))) for color in found]
    assert light == sorted(light)
    assert len(set(light)) == 4
