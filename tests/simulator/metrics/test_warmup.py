"""The warm-up of runs: a known transient, none, and no steady state."""

from dataclasses import replace

import numpy as np
import pytest

from simulator.metrics.summary import summarize
from simulator.metrics.warmup_cut import _seconds, warmup_cut
from simulator.metrics.window import measured_window
from simulator.results.records import Floats, Records, Status
from simulator.statistics import Cut
from tests.records_maker import single_server

COUNT = 2_000


def run(service_s: Floats, gap_s: float = 1.0) -> Records:
    """Requests that come every `gap_s` seconds: with service times below it none waits."""
    return single_server(np.linspace(100.0, 100.0 + gap_s * (len(service_s) - 1), len(service_s)), service_s)


def noisy(mean_s: float, count: int = COUNT) -> Floats:
    return mean_s * np.random.default_rng(1).uniform(0.8, 1.2, count)


def test_a_slow_start_is_cut_off() -> None:
    service_s = noisy(0.3)
    service_s[:200] += 0.5
    records = run(service_s)
    found = warmup_cut(records)
    assert found.settled
    assert 200 <= found.requests <= 210
    assert found.cut_s == pytest.approx(found.requests)
    assert found.arrivals == COUNT
    kept = measured_window(records, found.cut_s).measured
    assert int((~kept).sum()) == found.requests
    assert f"the {found.requests} of 2,000 requests that arrive in the first {found.requests} s are left out" in (
        found.words()
    )


def test_the_summary_begins_where_the_cut_ends() -> None:
    service_s = noisy(0.3)
    service_s[:200] += 0.5
    records = run(service_s)
    found = warmup_cut(records)
    cut = summarize(records, warmup_s=found.cut_s)
    assert cut["completed"] == COUNT - found.requests
    assert float(cut["mean_e2el_ms"] or 0) < 305 < float(summarize(records)["mean_e2el_ms"] or 0)


def test_a_queue_that_only_grows_has_no_steady_state() -> None:
    found = warmup_cut(run(noisy(1.3)))
    assert (found.settled, found.cut_s, found.requests, found.by) == (False, 0.0, 0, "ttft")
    assert "no steady state, as TTFT still changes" in found.words()


def test_few_requests_tell_nothing() -> None:
    assert not warmup_cut(run(noisy(0.3, 49))).settled
    assert warmup_cut(run(noisy(0.3, 60))).settled


def test_requests_without_an_answer_are_left_out() -> None:
    records = run(noisy(0.3))
    status = records.requests.status.copy()
    status[::3] = Status.REJECTED
    assert warmup_cut(replace(records, requests=replace(records.requests, status=status))).settled


def test_the_first_request_kept_is_kept_whatever_the_rounding() -> None:
    """first + (kept - first) may lie above kept: the window would then begin one request later."""
    rng, rounded = np.random.default_rng(0), 0
    for _ in range(500):
        arrival_s = np.sort(rng.uniform(0.1, 1000.0, 3))
        first, kept = float(arrival_s[0]), float(arrival_s[1])
        assert first + _seconds(arrival_s, np.arange(3), Cut(1, settled=True)) <= kept
        rounded += first + (kept - first) > kept
    assert rounded > 0
