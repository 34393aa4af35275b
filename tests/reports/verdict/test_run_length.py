"""Whether a run is long enough for its percentiles, in the table and in words."""

import math

import numpy as np

from reports.tables.verdict_table import verdict_table
from reports.verdict.sentences import own_intervals, too_few_words
from reports.verdict.shown_metrics import Facts, Summaries, facts
from simulator.metrics.summary import summarize
from simulator.results.records import Records
from simulator.statistics import PercentileInterval
from tests.records_maker import single_server

ENOUGH = PercentileInterval(200.0, 180.0, 230.0, 4_000, 3_500)
SHORT = PercentileInterval(200.0, 150.0, math.inf, 1_200, 90)


def known(*labels: str, found: PercentileInterval = SHORT) -> dict[str, Facts]:
    return {label: Facts(percentiles={"p99_ttft_ms": found, "p50_ttft_ms": ENOUGH}) for label in labels}


def runs(*labels: str, seeds: int = 1, **more: float | bool) -> Summaries:
    return {label: [{"p99_ttft_ms": 200.0, "p50_ttft_ms": 20.0, **more}] * seeds for label in labels}


def made(count: int) -> Records:
    rng = np.random.default_rng(3)
    return single_server(np.cumsum(rng.exponential(1.0, count)), rng.exponential(0.2, count))


def test_a_run_alone_has_intervals_beside_its_percentiles() -> None:
    records = made(5_000)
    text = verdict_table({"a": [summarize(records)]}, None, {"a": facts(records, None)})
    latencies = next(block for block in text.split("\n\n") if block.startswith("Latency"))
    assert latencies.count("[") == 3  # p50 and p99 of TTFT, p99 of E2E; no TPOT of single tokens
    assert "Percentiles with the [ends] of their 95 % interval, from this run alone." in text
    assert "Too few" not in text


def test_p99_of_200_requests_has_a_warning_and_no_upper_end() -> None:
    records = made(200)
    text = verdict_table({"a": [summarize(records)]}, None, {"a": facts(records, None)})
    assert ", -]" in text
    assert "-: too few requests for that end" in text.replace("\n", " ")
    assert "TTFT p99 and E2E p99 are uncertain: the run is worth 71 independent requests" in " ".join(text.split())
    assert "p99 needs 368." in text


def test_the_ends_are_in_the_unit_of_their_column() -> None:
    found = PercentileInterval(20_000.0, 15_000.0, 31_000.0, 4_000, 3_000)
    text = verdict_table({"a": [{"p99_ttft_ms": 20_000.0}]}, None, known("a", found=found))
    assert "20 [15, 31]" in text


def test_several_runs_have_no_intervals_of_their_own_but_the_warning() -> None:
    summaries = runs("a", "b")
    assert not own_intervals(summaries, known("a", "b"))
    assert too_few_words(summaries, known("a", "b")) == [
        "TTFT p99 is uncertain: the run is worth 90 independent requests, p99 needs 368. The true value may be far "
        "higher. Run longer."
    ]
    assert too_few_words(summaries, {**known("a"), **known("b", found=ENOUGH)})[0].startswith(
        "TTFT p99 of a is uncertain: "
    )


def test_one_request_is_no_several() -> None:
    few = PercentileInterval(200.0, 150.0, math.inf, 300, 1)
    assert "worth 1 independent request, p99" in too_few_words(runs("a"), known("a", found=few))[0]


def test_enough_requests_need_no_words() -> None:
    assert too_few_words(runs("a"), known("a", found=ENOUGH)) == []
    assert own_intervals(runs("a"), known("a", found=ENOUGH))["p99_ttft_ms"] is ENOUGH


def test_over_seeds_the_requests_of_each_run_count() -> None:
    assert too_few_words(runs("a", seeds=5), known("a")) == []
    few = PercentileInterval(200.0, 150.0, math.inf, 300, 300)
    assert too_few_words(runs("a", seeds=5), known("a", found=few)) == [
        "TTFT p99 is uncertain: each run is worth 300 independent requests, p99 needs 368. The means over seeds are "
        "too low. Run longer."
    ]


def test_an_overloaded_run_has_no_steady_state_to_be_sure_of() -> None:
    summaries = runs("a", saturated=True)
    assert not own_intervals(summaries, known("a"))
    assert too_few_words(summaries, known("a")) == []


def test_a_latency_that_nothing_has_needs_no_words() -> None:
    nothing = PercentileInterval(math.nan, math.nan, math.nan, 0, 0)
    assert too_few_words(runs("a"), known("a", found=nothing)) == []
