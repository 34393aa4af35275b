from __future__ import annotations

from reports.columns import Summaries, Summary
from reports.verdict import slo_text, verdict_words, winner
from simulator.metrics.slo import Slo

SLO = Slo(ttft_ms=1000, tpot_ms=50)


def summary(**changes: float | bool | None) -> Summary:
    base: Summary = {
        "completed": 100,
        "rejected": 0,
        "unfinished": 0,
        "output_throughput": 700.0,
        "request_goodput": 5.0,
        "slo_attainment": 1.0,
        "p50_ttft_ms": 25.0,
        "p99_ttft_ms": 160.0,
        "p50_tpot_ms": 7.0,
        "p99_tpot_ms": 20.0,
        "p99_e2el_ms": 3000.0,
        "wasted_slot_fraction": 0.0,
        "preemptions": 0,
        "saturated": False,
    }
    return {**base, **changes}


def words(summaries: Summaries, slo: Slo | None = SLO) -> str:
    return " ".join(verdict_words(summaries, slo))


BAD = summary(slo_attainment=0.05, request_goodput=0.1, p99_ttft_ms=35_000.0, output_throughput=350.0, p99_tpot_ms=10.0)


def test_who_keeps_the_slo_factors_and_price() -> None:
    assert verdict_words({"static": [BAD], "chunked": [summary()]}, SLO) == [
        "chunked (100.0 %) keeps 99 % of all requests within TTFT <= 1,000 ms and TPOT <= 50 ms; "
        "static (5.0 %) does not.",
        "chunked: p99 TTFT 160 ms, 219x lower than static (35 s). Its output throughput is 700 tok/s, 2.0x higher than "
        "static (350 tok/s). The price: TPOT p99 20 ms against 10 ms of static.",
    ]


def test_nobody_keeps_it() -> None:
    text = words({"a": [BAD], "b": [summary(slo_attainment=0.5)]})
    assert text.startswith("None keeps 99 % of all requests within")
    assert "b (50.0 %) and a (5.0 %)" in text


def test_seeds_that_disagree_about_the_slo() -> None:
    runs = [summary(slo_attainment=value) for value in (0.98, 1.0, 0.995)]
    assert words({"a": runs}).startswith("For a (99.2 %) 3 seeds are too few to tell whether 99 %")


def test_without_slo_the_lowest_ttft_is_held_against_the_others() -> None:
    other = summary(p99_ttft_ms=80.0, slo_attainment=None, request_goodput=None)
    runs: Summaries = {"a": [summary(slo_attainment=None, request_goodput=None)], "b": [other]}
    assert winner(runs) == "b"
    assert words(runs, None).startswith("b: p99 TTFT 80 ms, 2.0x lower than a (160 ms).")


def test_even_is_called_even() -> None:
    text = words({"a": [summary()], "b": [summary(p99_ttft_ms=161.0, output_throughput=701.0)]})
    assert "even with b (161 ms)" in text
    assert "Output throughput is even: the load sets it, not the policy." in text
    assert "price" not in text


def test_seeds_that_cannot_tell_policies_apart() -> None:
    one = [summary(p99_ttft_ms=value) for value in (100.0, 200.0, 150.0)]
    two = [summary(p99_ttft_ms=value) for value in (230.0, 120.0, 190.0)]
    assert "not told apart from b (180 ms) by 3 seeds" in words({"a": one, "b": two})


def test_losses_are_said() -> None:
    text = words({"a": [summary(rejected=3, unfinished=1)], "b": [summary()]})
    assert "a rejected 3 requests and left 1 request unfinished: the latencies are those of the other requests." in text
    assert "served none" in words({"a": [summary(rejected=3, completed=0)]})


def test_saturated_runs_are_said() -> None:
    text = words({"a": [summary(saturated=True)], "b": [summary()]})
    assert "a is saturated" in text
    assert "no steady state" in text
    assert "a (1 of 2 seeds) is saturated" in words({"a": [summary(saturated=True), summary()]})
    assert "saturated" not in words({"a": [summary()]})
    three = {label: [summary(saturated=True)] for label in "abc"}
    assert "All runs are saturated" in words(three)


def test_preemptions_are_a_price() -> None:
    assert "The price: 7 preemptions." in words({"a": [summary(preemptions=7)], "b": [summary(slo_attainment=0.9)]})


def test_undefined_values_are_passed_over() -> None:
    runs: Summaries = {"a": [summary(p99_tpot_ms=None, p50_tpot_ms=None)], "b": [BAD], "c": [{}]}
    assert words(runs).startswith("a (100.0 %) keeps")
    assert verdict_words({"c": [{}]}, SLO) == []


def test_slo_text() -> None:
    assert slo_text(Slo(e2el_ms=2500.5)) == "E2E <= 2,500.5 ms"
    assert slo_text(Slo(1000, 50, 9000)) == "TTFT <= 1,000 ms, TPOT <= 50 ms and E2E <= 9,000 ms"


def test_twins_are_said_and_not_held_against_each_other() -> None:
    words_ = verdict_words({"static": [BAD], "a": [summary()], "b": [summary()]}, None)
    assert words_[0].startswith("a: p99 TTFT 160 ms, 219x lower than static (35 s).")
    assert "a and b gave the same numbers, all of them." in words_
