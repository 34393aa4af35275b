"""The verdict on synthetic summaries: each sentence where it belongs, and nowhere else."""

from typing import Any

import pytest

from reports.verdict.sentences import verdict_words
from reports.verdict.shown_metrics import Facts, Miss, Summaries, Summary, slo_text
from simulator.metrics.latency import LATENCIES, Slo
from simulator.metrics.outcomes import Outcome, entries
from simulator.metrics.waits import Overload

SLO = Slo(ttft_ms=1000, tpot_ms=50)
TARGET = Slo(targets={"p99_ttft_ms": 1000.0})


def summary(**changes: Any) -> Summary:
    base: dict[str, Any] = {
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


def targeted(p99_ttft_ms: float, **changes: Any) -> Summary:
    """A summary with the outcome of `TARGET`."""
    excess = p99_ttft_ms - 1000
    outcome = Outcome("p99_ttft_ms", None, 1000.0, p99_ttft_ms, excess <= 0, excess, excess / 1000)
    return summary(p99_ttft_ms=p99_ttft_ms, slo_attainment=None, **changes, **entries([outcome]))


BAD = summary(slo_attainment=0.05, request_goodput=0.1, p99_ttft_ms=35_000.0, output_throughput=350.0, p99_tpot_ms=10.0)
JAM = Overload(60.0, 65.0, 90.0, 600, 30.0, 10.0, 240, 90.0, 1.0, 1, 240, 1000)


def words(summaries: Summaries, slo: Slo | None = SLO, facts: dict[str, Facts] | None = None) -> list[str]:
    return verdict_words(summaries, slo, facts)


def text(summaries: Summaries, slo: Slo | None = SLO, facts: dict[str, Facts] | None = None) -> str:
    return " ".join(words(summaries, slo, facts))


# ------------------------------------------------------------------------------------------------------ recommendation


def test_the_run_that_alone_keeps_the_slo_is_recommended_with_its_price() -> None:
    assert words({"static": [BAD], "chunked": [summary()]}) == [
        "Take chunked at this load: it alone keeps the SLO.",
        "The price: TPOT p99 20 ms against 10 ms of static. If that matters more to you, take static.",
        "SLO: TTFT <= 1,000 ms and TPOT <= 50 ms for 99 % of the requests. chunked (100.0 %) keeps it.",
        "static misses it: 5.0 % of the requests within their limits, 94.0 points short of 99 %.",
    ]


def test_of_several_that_keep_it_the_quickest_at_the_tail() -> None:
    found = words({"a": [summary()], "b": [summary(p99_ttft_ms=80.0)], "c": [summary(p99_ttft_ms=120.0)]})
    assert found[0] == (
        "Take b at this load: it keeps the SLO, as a and c do, and is quicker at the tail (TTFT p99 80 ms against "
        "120 ms of c)."
    )
    assert "The price" not in " ".join(found)


def test_none_keeps_it() -> None:
    found = words({"a": [BAD], "b": [summary(slo_attainment=0.5)]})
    assert found[0] == "No run keeps the SLO at this load. b comes nearest."
    assert not any("Take" in sentence for sentence in found[:1])


def test_a_saturated_run_wins_nothing() -> None:
    quick = summary(saturated=True, p99_ttft_ms=1.0)
    assert words({"quick": [quick], "slow": [summary()]})[0].startswith("Take slow at this load: it alone")
    assert words({"quick": [quick], "slow": [summary(slo_attainment=0.2)]})[0].endswith("slow comes nearest.")
    assert "of quick" not in text({"quick": [quick], "slow": [summary()]}), "nor is it a price"
    both = words({"a": [quick], "b": [{**quick, "p99_ttft_ms": 2.0}]})
    assert both[0].startswith("No recommendation: all runs are saturated.")


def test_without_an_slo_a_run_must_be_best_at_every_tail() -> None:
    best = summary(p99_ttft_ms=80.0, p99_tpot_ms=10.0)
    assert words({"a": [summary()], "b": [best]}, None)[0] == (
        "Take b at this load: no run is quicker at the tail (TTFT p99 80 ms, TPOT p99 10 ms and E2E p99 3,000 ms)."
    )
    mixed = summary(p99_ttft_ms=80.0, p99_tpot_ms=40.0)
    found = words({"a": [summary()], "b": [mixed]}, None)
    said = "No run is best in every figure, and there is no SLO to decide. "
    assert found[0].startswith(f"{said}The lowest: TTFT p99 80 ms")
    assert "TPOT p99 20 ms" in found[0]


def test_one_run_alone_is_judged_and_not_recommended() -> None:
    assert words({"a": [summary()]}) == [
        "SLO: TTFT <= 1,000 ms and TPOT <= 50 ms for 99 % of the requests. a (100.0 %) keeps it."
    ]
    assert words({"a": [summary()]}, None) == []


def test_preemptions_are_a_price() -> None:
    runs: Summaries = {"a": [summary(preemptions=7)], "b": [summary(slo_attainment=0.9)]}
    assert "The price: 7 preemptions." in words(runs)
    assert "1 preemption." in text({"a": [summary(preemptions=1)], "b": [summary(slo_attainment=0.9)]})


# ----------------------------------------------------------------------------------------------------------------- SLO


def test_targets_say_by_how_much_they_are_missed() -> None:
    found = words({"a": [targeted(1240.0)], "b": [targeted(5000.0)], "c": [targeted(600.0)]}, TARGET)
    assert found[0] == "Take c at this load: it alone keeps the SLO."
    assert found[1] == "SLO: TTFT p99 <= 1,000 ms. c (TTFT p99 600 ms) keeps it."
    assert found[2] == "a misses it: TTFT p99 1,240 ms, 24 % beyond 1,000 ms."
    assert found[3] == "b misses it: TTFT p99 5,000 ms, 5.0x the limit of 1,000 ms."


def test_targets_of_a_class_name_it() -> None:
    outcome = Outcome("p99_ttft_ms", "chat", 1000.0, 1500.0, False, 500.0, 0.5)
    assert "TTFT p99 of chat 1,500 ms, 50 % beyond 1,000 ms" in text({"a": [summary(**entries([outcome]))]}, TARGET)
    share = Outcome("slo_attainment", "chat", 0.99, 0.9, False, 0.09, 0.0909)
    found = text({"a": [summary(**entries([share]))]}, TARGET)
    assert "90.0 % of the chat requests within their limits, 9.0 points short of 99 %" in found
    nothing = Outcome("p99_ttft_ms", None, 1000.0, None, False, None, None)
    assert "TTFT p99 has no value, as no request finished" in text({"a": [summary(**entries([nothing]))]}, TARGET)


def test_limits_say_how_many_requests_exceed_which() -> None:
    misses = (
        Miss("ttft", None, 1000.0, 77, 1515, 3101.0),
        Miss("itl", "batch", 200.0, 0, 100, 20.0),
        Miss("tpot", "batch", 50.0, 90, 100, 75.0),
    )
    found = text({"a": [summary(slo_attainment=0.9)]}, SLO, {"a": Facts(None, misses)})
    assert found.endswith(
        "; TPOT over 50 ms in 90 of 100 batch requests (p99 75 ms); TTFT over 1,000 ms in 77 of 1,515 requests "
        "(p99 3,101 ms)."
    )
    assert "TPOT over" not in text({"a": [summary()]}, SLO, {"a": Facts(None, misses)}), "the SLO is kept"


def test_seeds_that_disagree_about_the_slo() -> None:
    runs = [summary(slo_attainment=value) for value in (0.98, 1.0, 0.995)]
    assert "3 seeds are too few to tell whether a (99.2 %) keeps it." in text({"a": runs})
    other = [summary(slo_attainment=0.5, p99_ttft_ms=value) for value in (3000.0, 3100.0, 3200.0)]
    assert words({"a": runs, "b": other})[0] == (
        "Perhaps a: 3 seeds are too few to decide whether any run keeps the SLO."
    )


def test_slo_text() -> None:
    assert slo_text(Slo(e2el_ms=2500.5)) == "E2E <= 2,500.5 ms"
    assert slo_text(Slo(1000, 50, 9000)) == "TTFT <= 1,000 ms, TPOT <= 50 ms and E2E <= 9,000 ms"
    nested = Slo(ttft_ms=1000, attainment=0.95, classes={"batch": Slo(targets={"p99_e2el_ms": 60_000.0})})
    assert slo_text(nested) == (
        "TTFT <= 1,000 ms, 95 % of the requests within their limits (batch: E2E p99 <= 60,000 ms)"
    )
    assert all(name in LATENCIES for name in ("ttft", "tpot", "e2el", "itl", "queue_time"))


# --------------------------------------------------------------------------------------------------------------- equal


def test_twins_are_said_once_and_recommended_together() -> None:
    found = words({"static": [BAD], "a": [summary()], "b": [summary()]})
    assert found[0] == "Take a or b at this load: no other run keeps the SLO."
    assert "a and b have equal numbers." in found
    assert sum("a and b" in sentence for sentence in found) == 2, "and judged once"
    assert "are the same" not in text({"static": [BAD], "a": [summary()]})


def test_nothing_to_choose() -> None:
    assert words({"a": [summary()], "b": [summary()]})[0] == "The runs are equal."


def test_seeds_that_cannot_tell_runs_apart() -> None:
    one = [summary(p99_ttft_ms=value) for value in (100.0, 200.0, 150.0)]
    two = [summary(p99_ttft_ms=value) for value in (230.0, 120.0, 190.0)]
    assert "With 3 seeds, b cannot be told apart from a." in words({"a": one, "b": two})
    assert words({"a": one, "b": two})[0] == "The runs are equal."
    apart = [summary(p99_ttft_ms=value) for value in (1100.0, 1200.0, 1150.0)]
    assert "cannot be told" not in text({"a": one, "b": apart})


def test_even_is_no_price() -> None:
    runs: Summaries = {"a": [summary()], "b": [summary(p99_ttft_ms=159.0, slo_attainment=0.5)]}
    assert "price" not in text(runs)


# ------------------------------------------------------------------------------------------- losses, saturation, bursts


def test_losses_are_said() -> None:
    found = text({"a": [summary(rejected=3, unfinished=1)], "b": [summary()]})
    assert "a rejected 3 requests and left 1 request unfinished: the latencies are those of the other" in found
    assert "served none" in text({"a": [summary(rejected=3, completed=0)]})
    assert "rejected" not in text({"a": [summary()]})


def test_saturated_runs_are_said() -> None:
    found = text({"a": [summary(saturated=True)], "b": [summary()]}, SLO, {"a": Facts(JAM)})
    assert "a (30 requests/s arrived, 10 requests/s started) is saturated: the queue grew" in found
    assert "was overloaded" not in found, "said already"
    assert "a (1 of 2 seeds) is saturated" in text({"a": [summary(saturated=True), summary()]})
    assert "saturated" not in text({"a": [summary()]})
    assert "a, b and c are saturated" in text({label: [summary(saturated=True)] for label in "abc"})


def test_a_transient_overload_is_told_with_its_figures() -> None:
    runs: Summaries = {"a": [summary()], "b": [BAD]}
    worse = Overload(60.0, 65.0, 700.0, 900, 30.0, 5.0, 300, 120.0, 1.0, 3, 450, 1000)
    found = text(runs, SLO, {"a": Facts(JAM), "b": Facts(worse)})
    assert found.endswith(
        "a was overloaded from 60 s to 90 s: 30 requests/s arrived; the server could start 10. The queue reached 600 "
        "at 65 s. 240 requests waited longer than 1,000 ms (24.0 %), the longest 90 s. "
        "The same happened to b (900 waiting, 450 late)."
    )
    alone = text({"b": [BAD]}, SLO, {"b": Facts(worse)})
    assert "from 60 s to 11.7 min, the worst of 3 such times" in alone
    assert "(450 of all 1,000 in all such times, 45.0 %)" in alone
    assert "overloaded" not in text(runs)
    assert text({"a": [summary()], "b": [summary()]}, SLO, {"a": Facts(JAM), "b": Facts(JAM)}).count("600") == 1
    assert "With the first seed, a was" in text({"a": [summary(), summary()]}, SLO, {"a": Facts(JAM)})


@pytest.mark.parametrize("slo", [SLO, TARGET, None])
def test_undefined_values_are_passed_over(slo: Slo | None) -> None:
    assert verdict_words({"c": [{}]}, slo) == []
    runs: Summaries = {"a": [summary(p99_tpot_ms=None, p50_tpot_ms=None)], "b": [BAD], "c": [{}]}
    assert words(runs)[0].startswith("Take a at this load")


def test_runs_of_other_workloads_are_not_ranked() -> None:
    runs = {"a": [summary(slo_attainment=1.0)], "b": [summary(slo_attainment=0.5, saturated=True)]}
    assert verdict_words(runs, SLO)[0].startswith("Take a")
    found = " ".join(verdict_words(runs, SLO, paired=False))
    assert "so no run is recommended" in found
    assert "Take" not in found
    assert "b is saturated" in found, "what is said of a run alone stays"
