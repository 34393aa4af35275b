"""Goodput against the rate, latency against throughput, cost against nines of the SLO; lines told apart in order."""

import math

from reports.sweep.load import goodput_picture, lines_over_load, load_picture, throughput_picture
from reports.sweep.points import SweepAxis
from reports.sweep.sweep_report import front_pictures
from reports.verdict.shown_metrics import Summary
from tests.reports.plots.test_pictures import everything
from tests.reports.sweep.results import POLICIES, RATES, SEATS, made, of_queue

LIMITS = {"p99_ttft_ms": 1_000.0}


def with_goodput(places: tuple[int, ...], seed: int) -> Summary:
    found = of_queue(places, seed)
    carried, share = found["request_throughput"], found["slo_attainment"]
    assert carried is not None
    assert share is not None
    return {**found, "request_goodput": carried * share, "p99_e2el_ms": 2 * (found["p99_ttft_ms"] or 0.0)}


def test_goodput_is_drawn_over_the_rate_with_all_of_it_for_comparison() -> None:
    picture = goodput_picture(made(of=with_goodput, limits=LIMITS))
    assert picture is not None
    said = everything(picture)
    for text in ("goodput (req/s)", "within SLO (%)", "rate (requests/s)", "knee", "saturated"):
        assert text in said
    assert "On the dashed line every request keeps the SLO." in picture.caption
    assert "95 % intervals over seeds" in picture.caption
    scaled = SweepAxis(("workload.trace.rate_scale",), "rate scale", RATES.labels, RATES.numbers)
    other = goodput_picture(made([scaled, SEATS], of=with_goodput))
    assert other is not None
    assert "dashed" not in other.caption, "a scale is no rate"


def test_without_a_load_or_an_slo_there_is_no_goodput() -> None:
    assert goodput_picture(made([POLICIES, SEATS], of=lambda places, seed: with_goodput((0, places[1]), seed))) is None
    assert goodput_picture(made()) is None
    assert throughput_picture(made([POLICIES, SEATS], of=lambda places, seed: of_queue((0, places[1]), seed))) is None


def test_latency_over_throughput_has_the_slo_and_both_intervals() -> None:
    picture = throughput_picture(made(of=with_goodput, limits=LIMITS))
    assert picture is not None
    said = everything(picture)
    assert "throughput (req/s)" in said
    assert "SLO 1 s" in said
    assert "E2E p99" in said


def test_cost_is_drawn_against_nines() -> None:
    pictures = {picture.name: everything(picture) for picture in front_pictures(made(of=with_goodput))}
    ticks = pictures["front_cost"].splitlines()
    assert {"90", "99", "99.9", "100"} <= set(ticks)


def test_lines_of_two_keys_take_the_colour_of_the_ordered_one_and_the_dash_of_the_other() -> None:
    lines = lines_over_load(made([RATES, SEATS, POLICIES], of=lambda places, seed: with_goodput(places[:2], seed)))
    assert lines is not None
    tints = {each.label: each.tint for each in lines.drawn}
    dashes = {each.label: each.dash for each in lines.drawn}
    few_static, few_chunked = (f"max_num_seqs 8, policy {policy}" for policy in POLICIES.labels)
    many_static = "max_num_seqs 64, policy static"
    assert tints[few_static] == tints[few_chunked] != tints[many_static]
    assert dashes[few_static] == dashes[many_static] != dashes[few_chunked]


def test_lines_that_coincide_are_said_to() -> None:
    picture = goodput_picture(made([RATES, POLICIES], of=lambda places, seed: with_goodput((places[0], 1), seed)))
    assert picture is not None
    assert "static and chunked_prefill coincide." in picture.caption


def test_a_bound_is_drawn_where_the_sweep_knows_it_and_the_weakest_of_a_load_counts() -> None:
    def bounded(places: tuple[int, ...], seed: int) -> Summary:
        at_best = {"p99_ttft_ms": 2.0 + places[1], "request_goodput": 40.0}
        return {**with_goodput(places, seed), "bound": at_best}  # type: ignore[dict-item] # as summary.json has it

    words = "The black dashed line: no scheduler can do better."
    for paint in (load_picture, goodput_picture):
        found, plain = paint(made(of=bounded, limits=LIMITS)), paint(made(of=with_goodput, limits=LIMITS))
        assert found is not None
        assert plain is not None
        assert words in found.caption
        assert words not in plain.caption
    points = made(of=bounded, limits=LIMITS).points
    assert {point.bound("p99_ttft_ms") for point in points} == {2.0 + place for place in {p.places[1] for p in points}}
    assert math.isnan(points[0].bound("p99_tpot_ms"))
