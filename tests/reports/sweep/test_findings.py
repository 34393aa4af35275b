"""Knees, fronts and best points, against what they are by hand."""

import math
from itertools import product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reports.sweep.load import knee_table
from reports.sweep.points import TRADES, SweepAxis, SweepPoint, SweepResult, best_points, keeps_slo, knee, trades
from reports.sweep.sweep_report import front_table
from reports.tables.terminal import PLAIN
from reports.verdict.shown_metrics import Summary
from scenarios.cli.report import best
from tests.reports.sweep.results import POLICIES, RATES, SEATS, made, of_queue, summary

SPEED, COST = TRADES


def line(capacity: float, rates: list[float], seeds: int = 1) -> list[SweepPoint]:
    """M/M/1: a throughput of the rate, a latency of 1 / (capacity - rate)."""
    found = []
    for place, rate in enumerate(rates):
        values = summary(request_throughput=rate, mean_e2el_ms=1e3 / (capacity - rate))
        found.append(SweepPoint(f"rate {rate:g}", (place,), (values,) * seeds))
    return found


@pytest.mark.parametrize("capacity", [4.0, 10.0, 20.0])
def test_the_knee_of_mm1_is_at_half_its_capacity(capacity: float) -> None:
    rates = [0.05 * capacity * step for step in range(1, 20)]
    found = knee(line(capacity, rates))
    assert found is not None
    assert found.point.label == f"rate {capacity / 2:g}"
    assert found.inside


def test_a_knee_does_not_depend_on_how_far_the_line_goes_on() -> None:
    near, far = (knee(line(10.0, rates)) for rates in ([1.0, 3.0, 5.0, 7.0], [1.0, 3.0, 5.0, 7.0, 9.0, 9.9]))
    assert near is not None
    assert far is not None
    assert near.point.label == far.point.label == "rate 5"


def test_a_knee_at_the_end_of_a_line_is_said_to_be_there() -> None:
    found = knee(line(100.0, [1.0, 2.0, 3.0]))
    assert found is not None
    assert (found.point.label, found.inside) == ("rate 3", False)


def test_two_points_have_no_knee() -> None:
    assert knee(line(10.0, [1.0, 5.0])) is None
    assert knee([SweepPoint("no result", (0,))] * 4) is None


def test_a_knee_of_each_seed() -> None:
    points = line(10.0, [1.0, 3.0, 5.0, 7.0], seeds=2)
    other = line(14.0, [1.0, 3.0, 5.0, 7.0])
    mixed = [
        SweepPoint(one.label, one.places, (one.summaries[0], two.summaries[0]))
        for one, two in zip(points, other, strict=True)
    ]
    found = knee(mixed)
    assert found is not None
    assert (found.first.label, found.last.label) == ("rate 5", "rate 7")


def test_the_table_of_knees_has_a_row_a_line() -> None:
    rows = knee_table(made())
    assert rows is not None
    assert rows.head[:3] == ("line", "knee at rate (requests/s)", "over 3 seeds")
    assert [row[:2] for row in rows.body] == [("max_num_seqs 8", "4"), ("max_num_seqs 64", "4")]


def traded(x: int, y: int) -> Summary:
    return summary(
        slo_attainment=x / 10,
        usd_per_million_output_tokens=float(y),
        p50_tpot_ms=1e3 / x,
        total_output_tokens=y,
        gpu_hours=1.0,
    )


@given(st.lists(st.tuples(st.integers(1, 6), st.integers(1, 6)), min_size=1, max_size=20))
def test_a_front_is_what_no_other_point_beats(values: list[tuple[int, int]]) -> None:
    """TPOT of 1000 / x ms, and cost y at an attainment of x: by comparing every pair."""
    points = [SweepPoint(str(place), (place,), (traded(x, y),)) for place, (x, y) in enumerate(values)]
    for trade, sign in ((COST, -1), (SPEED, 1)):
        expected = {
            str(place)
            for place, (x, y) in enumerate(values)
            if not any(a >= x and sign * b >= sign * y and (a > x or sign * b > sign * y) for a, b in values)
        }
        assert {point.label for point in trade.front(points)} == expected


def test_saturated_points_are_on_no_front_unless_all_are() -> None:
    result = made()
    assert len(result.eligible) == 7
    assert all(not point.is_saturated for point in result.eligible)

    def jammed(places: tuple[int, ...], seed: int) -> Summary:
        return summary(saturated=True, p50_tpot_ms=1.0 + places[0])

    assert len(made(of=jammed).eligible) == 8
    assert [trade.name for trade in trades(result)] == ["speed", "cost"]
    assert trades(made(of=jammed)) == []


def by_title(result: SweepResult) -> dict[str, Any]:
    return {best.title: best for best in best_points(result)}


def test_the_best_point_of_each_measure() -> None:
    found = by_title(made())
    assert found["TTFT p99"].point.label == "rate 2, max_num_seqs 64"
    assert found["output"].point.label == "rate 8, max_num_seqs 64"
    assert found["TPOT p99"].point.label == "rate 2, max_num_seqs 8"
    assert found["output"].among == 7, "the saturated point is left out"
    cheapest = found["cheapest within the SLO"]
    assert cheapest.point.label == "rate 8, max_num_seqs 64" or keeps_slo(cheapest.point)


def test_points_that_seeds_cannot_tell_apart_are_equal() -> None:
    """Paired by seed: a is better than b by 1 with every seed; c by 1 on average, but not with each."""
    values = {0: [11.0, 21.0, 31.0], 1: [12.0, 22.0, 32.0], 2: [10.0, 26.0, 30.0]}

    def of(places: tuple[int, ...], seed: int) -> Summary:
        return summary(p99_ttft_ms=values[places[0]][seed])

    axis = SweepAxis(("engine.policy",), "policy", ("a", "b", "c"))
    best = by_title(made([axis], of))["TTFT p99"]
    assert best.point.label == "policy a"
    assert [point.label for point in best.equal] == ["policy c"]


def test_of_one_seed_two_per_cent_are_equal() -> None:
    def of(places: tuple[int, ...], seed: int) -> Summary:
        return summary(p99_ttft_ms=[100.0, 101.5, 103.0][places[0]])

    axis = SweepAxis(("engine.policy",), "policy", ("a", "b", "c"))
    best = by_title(made([axis], of, seeds=1))["TTFT p99"]
    assert [point.label for point in best.equal] == ["policy b"]


def test_what_does_not_vary_has_no_best() -> None:
    def same(places: tuple[int, ...], seed: int) -> Summary:
        return summary(p99_ttft_ms=5.0)

    assert best_points(made([POLICIES], same)) == []


@pytest.mark.parametrize(
    ("values", "expected"),
    [({"slo_attainment": 0.99}, True), ({"slo_attainment": 0.98}, False), ({"slo_attainment": None}, False),
     ({"slo_met": True, "slo_attainment": 0.5}, True), ({"slo_met": False, "slo_attainment": 1.0}, False)],
)  # fmt: skip
def test_whether_a_point_keeps_the_slo(values: dict[str, Any], expected: bool) -> None:
    assert keeps_slo(SweepPoint("one", (0,), (summary(**values),))) is expected
    assert keeps_slo(SweepPoint("two", (0,), (summary(slo_attainment=1.0), summary(**values)))) is expected


def test_estimates_without_a_value_are_nan() -> None:
    assert math.isnan(SweepPoint("none", (0,)).estimate("p99_ttft_ms").mean)
    assert len(list(product(RATES.labels, SEATS.labels))) == len(made().points)


def test_a_front_says_what_keeps_the_slo() -> None:
    """Where there is one: by its targets, or by the share of requests within its limits; and nothing without."""
    result = made()
    [speed, *_] = trades(result)
    table = front_table(result, speed)
    assert table.head[:3] == ("", "point", "SLO")
    kept = {point.label: keeps_slo(point) for point in speed.front(result.eligible)}
    assert {row[1]: row[2] for row in table.body} == {label: "kept" if ok else "missed" for label, ok in kept.items()}
    assert set(kept.values()) == {True, False}
    short_table = front_table(result, speed, most=1)
    assert [row[1] for row in short_table.body[1:]] == [f"and {len(kept) - 1} more"]

    def bare(places: tuple[int, ...], seed: int) -> Summary:
        return {key: value for key, value in of_queue(places, seed).items() if key != "slo_attainment"}

    plain = made(of=bare)
    assert "SLO" not in front_table(plain, speed).head
    text = best(made(), PLAIN)
    assert "Throughput against speed: the Pareto front" in text
    assert "missed" in text
