"""Differences between runs: paired by seed, or by the requests of one run each."""

from dataclasses import replace

import numpy as np
import pytest

from reports.tables.details import KEYS, difference_table, differences
from simulator.metrics.confidence import metric_difference
from simulator.metrics.summary import summarize
from simulator.results.records import Records, Status
from simulator.statistics import Interval
from tests.records_maker import single_server


def served(slowness: float, seed: int = 0, count: int = 4_000) -> Records:
    """The same requests of a seed on a server of this speed."""
    rng = np.random.default_rng(seed)
    return single_server(np.cumsum(rng.exponential(1.0, count)), slowness * rng.exponential(0.4, count))


def test_over_seeds_they_are_paired() -> None:
    slow, fast = ([summarize(served(slowness, seed, 400)) for seed in range(4)] for slowness in (1.0, 0.9))
    found = differences({"slow": slow, "fast": fast}, {})["fast"]
    assert list(found) == ["p50_ttft_ms", "p99_ttft_ms", "p99_e2el_ms", "output_throughput"]
    for key, interval in found.items():
        expected = metric_difference(key, [each[key] for each in fast], [each[key] for each in slow])
        assert interval == expected
    assert found["p50_ttft_ms"].high < 0, "faster with each seed"


def test_within_one_run_each_they_are_paired_by_request() -> None:
    records = {"slow": served(1.0), "fast": served(0.95)}
    summaries = {label: [summarize(each)] for label, each in records.items()}
    found = differences(summaries, records)["fast"]
    assert list(found) == ["p50_ttft_ms", "p99_ttft_ms", "p99_e2el_ms"]
    for key, interval in found.items():
        ours, theirs = (float(summaries[label][0][key] or 0) for label in ("fast", "slow"))
        assert interval.mean == pytest.approx(ours - theirs, rel=1e-9)
        assert interval.low <= interval.mean <= interval.high < 0


def test_runs_that_served_other_requests_and_short_runs_are_not_held_against_each_other() -> None:
    slow, fast = served(1.0), served(0.95)
    status = fast.requests.status.copy()
    status[7] = Status.REJECTED
    other = replace(fast, requests=replace(fast.requests, status=status))
    for records in ({"slow": slow, "fast": other}, {"slow": served(1.0, count=30), "fast": served(0.9, count=30)}):
        summaries = {label: [summarize(each)] for label, each in records.items()}
        found = differences(summaries, records)
        assert found == {"fast": {}} or not any(key.startswith("p99") for key in found["fast"])
    assert difference_table({"fast": {}}) is None


def test_what_excludes_zero_is_marked() -> None:
    found = {"a": {"p99_ttft_ms": Interval(12.5, 4.0, 21.0, 5)}, "b": {"p99_ttft_ms": Interval(-1.0, -3.0, 1.0, 5)}}
    rows = difference_table({**found, "c": {}})
    assert rows is not None
    assert rows.head == ("run", "TTFT p99 (ms)")
    assert rows.body == (("a", "+12.50 [4.00, 21.00]*"), ("b", "-1.00 [-3.00, 1.00] "), ("c", "-"))


def test_shares_are_in_per_cent() -> None:
    rows = difference_table({"a": {"slo_attainment": Interval(0.25, 0.125, 0.375, 3)}})
    assert rows is not None
    assert rows.body == (("a", "+25.0 [12.5, 37.5]*"),)
    assert "slo_attainment" in KEYS
