"""Transient overload on queues whose course is known: when it is there, when it is not, and its figures."""

import numpy as np
import pytest

from simulator.metrics.waits import overload, saturated, waits
from simulator.metrics.window import measured_window
from simulator.results.records import Floats, Records
from tests.records_maker import single_server

SERVICE_S = 0.1


def served(arrival_s: Floats) -> Records:
    """A server that takes 0.1 s for each."""
    return single_server(np.sort(arrival_s), np.full(len(arrival_s), SERVICE_S))


def steady(until_s: float, rate: float = 5.0) -> Floats:
    return np.arange(0.0, until_s, 1 / rate)


BURST = np.linspace(100.0, 110.0, 300, endpoint=False)  # 30 a second, where 10 can be served


def test_a_burst_that_is_worked_off_has_its_figures() -> None:
    records = served(np.concatenate((steady(300.0), BURST)))
    assert not saturated(records, measured_window(records), waits(records)), "what the whole run says of it"
    found = overload(records, limit_s=1.0)
    assert found is not None
    assert found.from_s == pytest.approx(100.0, abs=1.0)
    assert found.peak_s == pytest.approx(110.0, abs=0.2)
    assert found.arrival_rate == pytest.approx(35.0, rel=0.05)
    assert found.service_rate == pytest.approx(10.0, rel=0.05)
    assert found.peak == pytest.approx(250, abs=5)  # (35 - 10) x 10
    assert found.to_s == pytest.approx(160.0, abs=5)  # 250 / (10 - 5) later, but for the last twentieth
    assert found.longest_s == pytest.approx(25.0, abs=1.0)  # 250 before it, ten a second
    assert found.times == 1
    waited = records.requests.scheduled_s - records.requests.arrival_s
    assert found.late == found.all_late == pytest.approx(int((waited > 1.0).sum()), abs=10)
    assert found.requests == len(waited)


def test_a_steady_run_has_none() -> None:
    assert overload(served(steady(300.0)), limit_s=0.0) is None
    rng = np.random.default_rng(0)
    busy = np.cumsum(rng.exponential(0.2, 2000))  # half loaded
    assert overload(served(busy), limit_s=1.0) is None


def test_what_nobody_pays_for_is_none() -> None:
    records = served(np.concatenate((steady(300.0), BURST)))
    assert overload(records, limit_s=30.0) is None
    few = served(np.concatenate((steady(3000.0), BURST[:30])))
    assert overload(few, limit_s=1.0) is None, "fewer than one in a hundred"


def test_several_bursts_are_counted_and_the_worst_is_told() -> None:
    second = np.linspace(200.0, 215.0, 450, endpoint=False)
    records = served(np.concatenate((steady(400.0), BURST, second)))
    found = overload(records, limit_s=1.0)
    assert found is not None
    assert found.times == 2
    assert found.peak_s == pytest.approx(215.0, abs=0.2)
    assert found.late < found.all_late


def test_without_a_limit_a_wait_is_too_long_where_it_exceeds_the_service() -> None:
    records = served(np.concatenate((steady(300.0), BURST)))
    found = overload(records)
    assert found is not None
    assert found.limit_s == pytest.approx(SERVICE_S, rel=0.01)


def test_only_measured_requests_count() -> None:
    records = served(np.concatenate((steady(300.0), BURST)))
    assert overload(records, limit_s=1.0, warmup_s=200.0) is None


def test_no_requests_no_overload() -> None:
    assert overload(served(np.zeros(0)), limit_s=1.0) is None
