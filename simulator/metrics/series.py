"""Quantities over time, exact, and their reduction to what a plot can show."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from simulator.metrics.usage import step_starts
from simulator.metrics.waits import waits
from simulator.metrics.window import Bools, run_end_s
from simulator.results.records import Floats, Ints, Records


@dataclass(frozen=True, slots=True)
class StepFunction:
    """`value[i]` from `time_s[i]` until before `time_s[i + 1]`; 0 before the first, the last until `end_s`.

    `time_s` rises strictly.
    """

    time_s: Floats
    value: Floats
    end_s: float

    def at(self, time_s: Floats) -> Floats:
        """The values at these times."""
        place = np.searchsorted(self.time_s, time_s, side="right")
        return np.concatenate(([0.0], self.value))[place]


@dataclass(frozen=True, slots=True)
class Points:
    """Single observations, in order of time."""

    time_s: Floats
    value: Floats


@dataclass(frozen=True, slots=True)
class Buckets:
    """Equal stretches of time with the mean and the largest value in each."""

    start_s: Floats
    end_s: Floats
    mean: Floats
    peak: Floats

    @property
    def middle_s(self) -> Floats:
        """Where to draw a bucket."""
        return (self.start_s + self.end_s) / 2


def queue_depth(records: Records, only: Bools | None = None) -> StepFunction:
    """Waiting requests, new and preempted ones; `only` says which count, one entry a request."""
    waiting = waits(records, only)
    times = np.unique(np.concatenate((waiting.from_s, waiting.to_s)))
    return StepFunction(times, waiting.depth(times).astype(np.float64), run_end_s(records))


def running(records: Records, replica: int | None = None) -> StepFunction:
    """Requests that hold a slot, those that a batch keeps after their end included; of all replicas, or of one."""
    return row_series(records, records.rows.running, replica)


def row_series(records: Records, values: Ints, replica: int | None = None) -> StepFunction:
    """Any column of the rows (one entry a row) as a function of time, 0 while no step is in flight."""
    rows = records.rows
    return _over_replicas(records, replica, rows.replica, rows.start_s, rows.end_s, values)


def kv_used_blocks(records: Records, replica: int | None = None) -> StepFunction:
    """KV blocks in use, step by step; of all replicas, or of one."""
    of_step = _replica_of_steps(records) if records.replicas > 1 else records.rows.replica
    starts, ends, used = step_starts(records), records.step_end_s, records.step_used_blocks
    return _over_replicas(records, replica, of_step, starts, ends, used)


def step_time(records: Records, replica: int | None = None) -> Points:
    """Seconds that each step took, at the time it began."""
    starts = step_starts(records)
    seconds = records.step_end_s - starts
    if replica is not None:
        of_replica = _replica_of_steps(records) == replica
        starts, seconds = starts[of_replica], seconds[of_replica]
    elif records.replicas > 1:
        order = np.argsort(starts, kind="stable")
        starts, seconds = starts[order], seconds[order]
    return Points(starts, seconds)


def preemptions(records: Records) -> StepFunction:
    """Preemptions so far. The number between two times is the difference of the values (`numpy.diff(f.at(edges))`)."""
    times, counts = np.unique(records.requeues.from_s, return_counts=True)
    return StepFunction(times, np.cumsum(counts).astype(np.float64), run_end_s(records))


def replicas_there(records: Records) -> StepFunction | None:
    """The number of replicas, starting and draining ones included; None where it does not change."""
    lives = records.lives
    if lives is None:
        return None
    ends = lives.end_s[~np.isnan(lives.end_s)]
    times = np.unique(np.concatenate((lives.start_s, ends)))
    begun = np.searchsorted(np.sort(lives.start_s), times, side="right")
    ended = np.searchsorted(np.sort(ends), times, side="right")
    return StepFunction(times, (begun - ended).astype(np.float64), run_end_s(records))


def downsample(
    series: StepFunction | Points, points: int, start_s: float | None = None, end_s: float | None = None
) -> Buckets:
    """At most `points` buckets between two times, by default from the first time to the end.

    The mean of a `StepFunction` is over time, that of `Points` over the observations; buckets without one are left
    out. An empty series or stretch gives no bucket. ValueError unless `points` is at least 1.
    """
    if points < 1:
        raise ValueError(f"points must be 1 or more, not {points}")
    times = series.time_s
    start = start_s if start_s is not None else (float(times[0]) if len(times) else 0.0)
    last = float(times[-1]) if len(times) else start
    end = end_s if end_s is not None else (series.end_s if isinstance(series, StepFunction) else last)
    if not len(times) or end < start or (end == start and isinstance(series, StepFunction)):
        nothing = np.zeros(0)
        return Buckets(nothing, nothing, nothing, nothing)
    edges = np.linspace(start, end, points + 1)
    return _of_function(series, edges) if isinstance(series, StepFunction) else _of_points(series, edges)


def _of_function(function: StepFunction, edges: Floats) -> Buckets:
    # A point before everything, so that some value is in force at every edge.
    times = np.concatenate(([min(float(edges[0]), float(function.time_s[0])) - 1.0], function.time_s))
    values = np.concatenate(([0.0], function.value))
    area = np.concatenate(([0.0], np.cumsum(values[:-1] * np.diff(times))))
    in_force = np.searchsorted(times, edges, side="right") - 1
    area_at = area[in_force] + values[in_force] * (edges - times[in_force])
    until = np.searchsorted(times, edges[1:], side="left")
    return Buckets(edges[:-1], edges[1:], np.diff(area_at) / np.diff(edges), _maxima(values, in_force[:-1], until))


def _of_points(points: Points, edges: Floats) -> Buckets:
    begin = np.searchsorted(points.time_s, edges[:-1], side="left")
    until = np.append(begin[1:], np.searchsorted(points.time_s, edges[-1], side="right"))  # the last edge belongs in
    counts = until - begin
    some = counts > 0
    begin, until = begin[some], until[some]
    sums = np.add.reduceat(points.value[: until[-1]], begin) if len(begin) else np.zeros(0)
    peaks = _maxima(points.value, begin, until)
    return Buckets(edges[:-1][some], edges[1:][some], sums / counts[some], peaks)


def _maxima(values: Floats, begin: Ints, until: Ints) -> Floats:
    """max(values[begin:until]) of each pair; none is empty."""
    if not len(begin):
        return np.zeros(0)
    # reduceat takes every second stretch between given places; a place past the end needs an element to stand on.
    places = np.column_stack((begin, until)).ravel()
    return np.asarray(np.maximum.reduceat(np.append(values, -np.inf), places)[::2])


def _over_replicas(
    records: Records, replica: int | None, of: Ints, starts: Floats, ends: Floats, values: Ints
) -> StepFunction:
    if replica is not None and not 0 <= replica < records.replicas:
        raise ValueError(f"there is no replica {replica}; there are {records.replicas}, counted from 0")
    if records.replicas == 1:
        return _sum([_held(starts, ends, values)], run_end_s(records))
    numbers = range(records.replicas) if replica is None else (replica,)
    first, last = (np.searchsorted(of, numbers, side).tolist() for side in ("left", "right"))  # one after the other
    parts = [slice(a, b) for a, b in zip(first, last, strict=True)]
    return _sum([_held(starts[part], ends[part], values[part]) for part in parts], run_end_s(records))


def _replica_of_steps(records: Records) -> Ints:
    return np.repeat(records.rows.replica, records.rows.repeat)


def _held(starts: Floats, ends: Floats, values: Ints) -> tuple[Floats, Floats]:
    """Each value from its start to its end, 0 in between: (times, values), times not falling."""
    idle = np.ones(len(starts), dtype=np.bool_)
    idle[:-1] = starts[1:] > ends[:-1]
    place = np.arange(len(starts)) + np.cumsum(idle) - idle
    times = np.empty(len(starts) + int(idle.sum()))
    held = np.zeros(len(times))
    times[place] = starts
    held[place] = values
    times[place[idle] + 1] = ends[idle]
    return times, held


def _sum(parts: Sequence[tuple[Floats, Floats]], end_s: float) -> StepFunction:
    if len(parts) == 1:
        times, values = parts[0]
    else:
        changes = [np.diff(values, prepend=0.0) for _, values in parts]
        times = np.concatenate([times for times, _ in parts])
        order = np.argsort(times, kind="stable")
        times, values = times[order], np.cumsum(np.concatenate(changes)[order])  # exact: whole numbers
    last = np.ones(len(times), dtype=np.bool_)
    last[:-1] = times[1:] > times[:-1]  # of what happens at one time, only the outcome lasts
    return StepFunction(times, values, end_s) if last.all() else StepFunction(times[last], values[last], end_s)
