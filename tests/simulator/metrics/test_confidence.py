"""Intervals within a run: of the summary's own values, of the measured requests in order of arrival."""

import math
from dataclasses import replace

import numpy as np
import pytest

from simulator.metrics.confidence import PERCENTILE_KEYS, run_percentiles
from simulator.metrics.summary import summarize
from simulator.results.records import Records
from tests.records_maker import single_server


def run(count: int = 3_000) -> Records:
    rng = np.random.default_rng(2)
    return single_server(np.cumsum(rng.exponential(1.0, count)), rng.exponential(0.4, count))


@pytest.mark.parametrize(("warmup_s", "cooldown_s"), [(0.0, 0.0), (400.0, 100.0)])
def test_the_values_are_the_summarys(warmup_s: float, cooldown_s: float) -> None:
    records = run()
    summary = summarize(records, warmup_s=warmup_s, cooldown_s=cooldown_s)
    found = run_percentiles(records, warmup_s=warmup_s, cooldown_s=cooldown_s)
    assert list(found) == list(PERCENTILE_KEYS)
    for key, interval in found.items():
        assert summary[key] is None if not interval.n else interval.value == pytest.approx(summary[key], rel=1e-12)
        assert not interval.n or interval.low <= interval.value <= interval.high
    assert found["p50_e2el_ms"].n == summary["completed"]


def test_requests_count_in_the_order_of_arrival() -> None:
    """Rows of a closed loop stand otherwise; neighbours in time are what is correlated."""
    records = run()
    order = np.random.default_rng(0).permutation(len(records.requests.row))
    columns = {name: getattr(records.requests, name)[order] for name in records.requests.__dataclass_fields__}
    shuffled = replace(records, requests=replace(records.requests, **columns))
    assert run_percentiles(shuffled) == run_percentiles(records)


def test_a_latency_that_no_request_has_has_no_interval() -> None:
    found = run_percentiles(single_server(np.zeros(0), np.zeros(0)))
    assert all(each.n == 0 and math.isnan(each.value) for each in found.values())


def test_only_what_is_asked_for() -> None:
    assert list(run_percentiles(run(100), ["p99_ttft_ms"])) == ["p99_ttft_ms"]
