"""Queue depth, starvation, and when a run counts as saturated."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.metrics.waits import Starvation, Waits, saturated, starvation, waits
from simulator.metrics.window import measured_window
from simulator.results.records import Floats, Records, RequeueColumns, Status
from tests.naive_metrics import depth, wait_times
from tests.records_maker import single_server, tell
from tests.story import Story

stories = st.builds(tell, st.integers(0, 10**6), requests=st.integers(1, 25), cut_short=st.booleans())


@given(stories, st.floats(0, 1), st.floats(0, 1))
def test_extremes_and_mean_of_any_stretch(story: Story, a: float, b: float) -> None:
    waiting, naive = waits(story.records()), wait_times(story)
    start, end = sorted((a * story.end_s(), b * story.end_s()))
    times = sorted({t for wait in naive for t in wait if start <= t < end} | {start})
    depths = [depth(naive, t) for t in times]
    assert waiting.max_depth(start, end) == max(depths)
    assert waiting.min_depth(start, end) == min(depths)
    if end > start:
        area = sum(d * (v - u) for d, u, v in zip(depths, times, [*times[1:], end], strict=True))
        assert waiting.mean_depth(start, end) == pytest.approx(area / (end - start), abs=1e-9)


@given(stories)
def test_starvation_is_the_worst_of_each_kind(story: Story) -> None:
    found = starvation(story.records())
    stretches = [[(b if b == b else story.left_s(r)) - a for a, b, _ in r.waits] for r in story.requests]
    first = [waited[0] for waited in stretches if waited]
    again = [each for waited in stretches for each in waited[1:]]
    assert found.longest_queue_s == max(first, default=0.0)
    assert found.longest_requeue_s == max(again, default=0.0)
    assert found.most_preemptions == max(max(r.preemptions, 0) for r in story.requests)


def test_starvation_of_all_requests_and_of_some() -> None:
    records = single_server(np.array([0.0, 0.5, 1.0, 9.0]), np.ones(4))
    requeues = RequeueColumns(
        np.array([3, 1]), np.array([2.0, 1.0]), np.array([3.0, np.nan]), np.zeros(2, dtype=np.int64)
    )
    preempted = replace(records.requests, preemptions=np.array([0, 1, 0, 1]))
    records = replace(records, requeues=requeues, requests=preempted)
    assert starvation(records) == Starvation(1.0, 9.0, 1)
    assert starvation(records, np.array([True, False, False, True])) == Starvation(0.0, 1.0, 1)


def test_scheduled_on_arrival_never_stood_in_the_queue() -> None:
    waiting = waits(single_server(np.array([0.0, 0.0, 1.0]), np.ones(3)))
    assert waiting.from_s.tolist() == [0.0, 1.0]  # the third waits from 1 to 2, the first not at all
    assert waiting.max_depth(0.0, 3.0) == 1  # at 1 s the second leaves as the third comes
    assert waiting.depth(np.array([-1.0, 0.0, 1.0, 2.0])).tolist() == [0, 1, 1, 0]


def test_rejected_do_not_wait_and_the_unscheduled_wait_to_the_end() -> None:
    records = single_server(np.zeros(3), np.ones(3))
    requests = replace(
        records.requests,
        status=np.array([Status.FINISHED, Status.REJECTED, Status.UNFINISHED], dtype=np.int64),
        scheduled_s=np.array([0.0, np.nan, np.nan]),
    )
    waiting = waits(replace(records, requests=requests))
    assert (waiting.from_s.tolist(), waiting.to_s.tolist()) == ([0.0], [3.0])


def test_waits_of_some() -> None:
    records = single_server(np.zeros(3), np.ones(3))
    assert waits(records, np.array([True, True, False])).to_s.tolist() == [1.0]


def test_no_time_no_mean() -> None:
    assert np.isnan(Waits(np.zeros(0), np.zeros(0)).mean_depth(1.0, 1.0))


def is_saturated(records: Records, warmup_s: float = 0.0) -> bool:
    return saturated(records, measured_window(records, warmup_s), waits(records))


Process = Callable[[np.random.Generator, int], Floats]

PROCESSES: dict[str, Process] = {
    "constant": lambda rng, n: np.ones(n),
    "poisson": lambda rng, n: rng.exponential(1.0, n),
    "bursty": lambda rng, n: rng.gamma(1 / 9, 9.0, n),  # coefficient of variation 3
    "on and off": lambda rng, n: np.where(np.arange(n) % 100 < 90, 0.2, 8.2) * rng.exponential(1.0, n),
}


@pytest.mark.parametrize("service", ["fixed", "exponential"])
@pytest.mark.parametrize("process", PROCESSES)
@pytest.mark.parametrize(("load", "expected"), [(0.5, False), (0.8, False), (1.5, True), (3.0, True)])
def test_long_runs_of_one_server(process: str, service: str, load: float, expected: bool) -> None:
    for seed in range(4):
        rng = np.random.default_rng(seed)
        arrivals = np.cumsum(PROCESSES[process](rng, 5000))
        times = load * (np.ones(5000) if service == "fixed" else rng.exponential(1.0, 5000))
        assert is_saturated(single_server(arrivals, times)) is expected


def test_shorter_runs_need_more_overload_to_show() -> None:
    def share(load: float, n: int) -> float:
        found = []
        for seed in range(40):
            arrivals = np.cumsum(np.random.default_rng(seed).exponential(1.0, n))
            found.append(is_saturated(single_server(arrivals, np.full(n, load))))
        return float(np.mean(found))

    assert share(0.95, 300) == 0.0
    assert share(1.0, 1000) < 0.1
    assert share(1.5, 300) > 0.9
    assert share(1.2, 1000) > 0.9


def test_several_servers_in_their_limits_and_beyond() -> None:
    rng = np.random.default_rng(3)
    arrivals = np.cumsum(rng.exponential(1.0, 3000))
    assert not is_saturated(single_server(arrivals, np.full(3000, 3.2), slots=4))
    assert is_saturated(single_server(arrivals, np.full(3000, 6.0), slots=4))


def test_a_burst_is_no_saturation() -> None:
    at_once = single_server(np.zeros(1000), np.ones(1000))
    assert not is_saturated(at_once)  # no time to grow in: it was all there from the beginning
    short = single_server(np.linspace(0, 10, 99), np.ones(99))
    assert not is_saturated(short)  # fewer than a hundred
    long_service = single_server(np.linspace(0, 60, 500), np.full(500, 30.0), slots=8)
    assert not is_saturated(long_service)  # over before three requests could have been served one after the other
    calm = np.arange(0.0, 3000.0, 2.0)
    with_burst = np.sort(np.concatenate((calm, np.linspace(1500, 1510, 300))))
    assert not is_saturated(single_server(with_burst, np.ones(len(with_burst))))  # worked off before the end


def test_a_queue_that_was_long_and_stays_so_does_not_grow() -> None:
    arrivals = np.concatenate((np.zeros(500), np.arange(0.0, 2000.0)))
    assert not is_saturated(single_server(arrivals, np.ones(2500)))


def test_only_the_measured_window_counts() -> None:
    """Overload at first, calm afterwards, and the other way round."""
    early, late = np.arange(0.0, 500.0, 0.5), np.arange(500.0, 4000.0, 2.0)
    records = single_server(np.concatenate((early, late)), np.ones(len(early) + len(late)))
    assert not is_saturated(records)
    assert not is_saturated(records, warmup_s=500.0)
    calm, rush = np.arange(0.0, 2000.0, 2.0), np.arange(2000.0, 3000.0, 0.5)
    records = single_server(np.concatenate((calm, rush)), np.ones(len(calm) + len(rush)))
    assert is_saturated(records, warmup_s=2000.0)
