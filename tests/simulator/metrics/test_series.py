"""Exact series agree with the run's long form at every time; buckets with the exact series."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.metrics import series
from simulator.metrics.series import Points, StepFunction, downsample
from simulator.metrics.summary import summarize
from simulator.results.records import LifeColumns
from tests.naive_metrics import depth, wait_times
from tests.records_maker import single_server, tell
from tests.story import Story

stories = st.builds(tell, st.integers(0, 10**6), requests=st.integers(1, 25), cut_short=st.booleans())


def integral(function: StepFunction, start_s: float, end_s: float) -> float:
    edges = np.concatenate((function.time_s, [max(function.end_s, end_s)]))
    return float(np.sum(function.value * np.diff(np.clip(edges, start_s, end_s))))


def change_times(story: Story) -> list[float]:
    times = {t for step in story.steps for t in (step.start_s, step.end_s)} | {t for w in wait_times(story) for t in w}
    return sorted({-1.0} | times | {t + 1e-7 for t in times})


def assert_well_formed(function: StepFunction) -> None:
    assert np.all(np.diff(function.time_s) > 0)
    assert len(function.time_s) == len(function.value)


@given(stories)
def test_queue_depth(story: Story) -> None:
    times, waiting = change_times(story), wait_times(story)
    found = series.queue_depth(story.records())
    assert_well_formed(found)
    assert found.at(np.array(times)).tolist() == [depth(waiting, t) for t in times]


@given(stories)
def test_running_and_kv(story: Story) -> None:
    records, times = story.records(), change_times(story)
    for replica in (None, *range(story.replicas)):
        steps = [s for s in story.steps if replica in (None, s.replica)]
        running = series.running(records, replica)
        used = series.kv_used_blocks(records, replica)
        assert_well_formed(running)
        assert_well_formed(used)
        in_flight = [[s for s in steps if s.start_s <= t < s.end_s] for t in times]
        assert running.at(np.array(times)).tolist() == [sum(len(s.running) for s in now) for now in in_flight]
        assert used.at(np.array(times)).tolist() == [sum(s.used_blocks for s in now) for now in in_flight]


@given(stories)
def test_series_have_the_means_of_the_summary(story: Story) -> None:
    records = story.records()
    summary = summarize(records)
    start = min(r.arrival_s for r in story.requests)
    end = start + float(summary["duration"] or 0)
    for function, name, full in (
        (series.queue_depth(records), "queue_depth_mean", 1),
        (series.running(records), "batch_occupancy", records.max_num_seqs * records.replicas),
        (series.kv_used_blocks(records), "kv_utilization_mean", records.num_blocks * records.replicas),
    ):
        expected = summary[name]
        if expected is not None:
            found = integral(function, start, end) / (end - start) / full
            assert math.isclose(found, expected, rel_tol=1e-9, abs_tol=1e-12)


@given(stories)
def test_step_time_and_preemptions(story: Story) -> None:
    records = story.records()
    found = series.step_time(records)
    expected = sorted((s.start_s, s.end_s - s.start_s) for s in story.steps)
    assert sorted(zip(found.time_s.tolist(), found.value.tolist(), strict=True)) == expected
    assert np.all(np.diff(found.time_s) >= 0)
    of_last = series.step_time(records, story.replicas - 1)
    assert len(of_last.time_s) == sum(s.replica == story.replicas - 1 for s in story.steps)
    preempted = [a for r in story.requests for a, _, _ in r.waits[1:]]
    counted = series.preemptions(records)
    assert_well_formed(counted)
    times = change_times(story)
    assert counted.at(np.array(times)).tolist() == [sum(a <= t for a in preempted) for t in times]


@given(stories, st.integers(1, 40), st.booleans())
def test_buckets_of_a_function(story: Story, points: int, outside: bool) -> None:
    function = series.queue_depth(story.records())
    start, end = (-2.0, story.end_s() + 2.0) if outside else (None, None)
    found = downsample(function, points, start, end)
    if not len(function.time_s) or (start is None and function.time_s[0] == function.end_s):
        assert len(found.mean) == 0
        return
    assert len(found.mean) == points
    for a, b, mean, peak in zip(found.start_s, found.end_s, found.mean, found.peak, strict=True):
        inside = function.time_s[(function.time_s >= a) & (function.time_s < b)]
        assert peak == max(function.at(np.append(inside, a)))
        assert math.isclose(mean, integral(function, a, b) / (b - a), rel_tol=1e-6, abs_tol=1e-6)
    assert math.isclose(
        float(np.dot(found.mean, found.end_s - found.start_s)),
        integral(function, found.start_s[0], found.end_s[-1]),
        rel_tol=1e-9,
        abs_tol=1e-9,
    )


@given(st.lists(st.tuples(st.integers(0, 50), st.floats(0, 1)), min_size=1, max_size=50), st.integers(1, 20))
def test_buckets_of_points(pairs: list[tuple[int, float]], buckets: int) -> None:
    times, values = zip(*sorted(pairs), strict=True)
    found = downsample(Points(np.array(times, dtype=np.float64), np.array(values)), buckets)
    assert 1 <= len(found.mean) <= buckets
    seen: list[float] = []
    for i, (a, b) in enumerate(zip(found.start_s, found.end_s, strict=True)):
        inside = [v for t, v in zip(times, values, strict=True) if a <= t < b or t == b == times[-1]]
        if a == b:  # all at one time: every bucket is that time, and one of them has it all
            inside = list(values)
        seen += inside
        assert found.peak[i] == max(inside)
        assert math.isclose(found.mean[i], sum(inside) / len(inside), rel_tol=1e-12, abs_tol=1e-300)
    assert len(seen) == len(values)


def test_points_within_a_stretch() -> None:
    points = Points(np.arange(10.0), np.arange(10.0))
    found = downsample(points, 2, 2.0, 6.0)
    assert found.mean.tolist() == [2.5, 5.0]
    assert found.peak.tolist() == [3.0, 6.0]
    assert found.middle_s.tolist() == [3.0, 5.0]


def test_nothing_gives_nothing() -> None:
    empty = np.zeros(0)
    assert len(downsample(Points(empty, empty), 5).mean) == 0
    assert len(downsample(StepFunction(empty, empty, 3.0), 5).mean) == 0
    assert len(downsample(Points(np.ones(1), np.ones(1)), 5, 3.0, 4.0).mean) == 0
    assert integral(StepFunction(empty, empty, 3.0), 0.0, 3.0) == 0.0


def test_no_bucket_and_no_such_replica_are_refused() -> None:
    records = single_server(np.zeros(2), np.ones(2))
    with pytest.raises(ValueError, match="points must be 1 or more"):
        downsample(series.running(records), 0)
    with pytest.raises(ValueError, match="there is no replica 1"):
        series.running(records, 1)


def test_queue_depth_of_some() -> None:
    records = single_server(np.zeros(3), np.ones(3))
    found = series.queue_depth(records, np.array([False, False, True]))
    assert (found.time_s.tolist(), found.value.tolist()) == ([0.0, 2.0], [1.0, 0.0])


def test_replicas_that_come_and_go() -> None:
    records = tell(3, requests=20).records()
    assert series.replicas_there(records) is None
    lives = LifeColumns(
        replica=np.array([0, 1, 1]), start_s=np.array([0.0, 2.0, 7.0]), ready_s=np.array([0.0, 3.0, 8.0]),
        drain_s=np.array([np.nan, 4.0, np.nan]), end_s=np.array([np.nan, 5.0, np.nan]),
    )  # fmt: skip
    found = series.replicas_there(replace(records, lives=lives))
    assert found is not None
    assert found.at(np.array([-1.0, 0.0, 1.9, 2.0, 4.9, 5.0, 7.0])).tolist() == [0, 1, 1, 2, 2, 1, 2]
