"""Arrival times drawn from an arrival process, on a clock that its profile and its switches speed up and slow down."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from scenarios.random_draws import stream
from scenarios.schema.arrival import Arrival, Points, RateProfile, Stream, period_of, points_of
from simulator.errors import InputError
from simulator.workload import Floats, Ints, Workload

# A clock that a rate profile speeds up and slows down: arrival processes with a rate that changes.
#
# A stationary process of rate 1 on this clock, seen in real time, is the process with the rate of the profile: the
# expected number of arrivals up to t is the integral of the factor (time rescaling; Cinlar 1975, ch. 4.7). Scaling
# each gap by the rate at its start instead would miss every change that falls within a gap.

MOST_PIECES = 20_000_000


@dataclass(frozen=True, slots=True)
class RateClock:
    """The factor in pieces: piece i starts at `start_s[i]` with `factor[i]` and rises by `slope[i]` a second.

    The last piece never ends. `reading_s[i]` is what the clock shows at the start of piece i: the integral of the
    factor up to there.
    """

    start_s: Floats
    factor: Floats
    slope: Floats
    reading_s: Floats

    def read(self, time_s: float) -> float:
        """The clock's reading at a time."""
        piece = int(np.searchsorted(self.start_s, time_s, side="right")) - 1
        into = time_s - self.start_s[piece]
        return float(self.reading_s[piece] + into * (self.factor[piece] + 0.5 * self.slope[piece] * into))

    def times(self, reading_s: Floats) -> Floats:
        """The times of these readings, which must ascend; infinity for a reading that is never reached."""
        times: Floats = np.maximum.accumulate(self._times(reading_s))
        return times  # readings a last bit apart may come out in the wrong order

    def until(self, until_s: float) -> RateClock:
        """The clock with every piece that begins before a time."""
        return self

    def _times(self, reading_s: Floats) -> Floats:
        piece = np.searchsorted(self.reading_s, reading_s, side="right") - 1
        left = reading_s - self.reading_s[piece]
        factor, slope = self.factor[piece], self.slope[piece]
        # left = factor x + slope x^2 / 2, solved so that nothing cancels and slope 0 needs no case of its own
        divisor = factor + np.sqrt(np.maximum(factor * factor + 2.0 * slope * left, 0.0))
        into = np.divide(2.0 * left, divisor, out=np.zeros_like(left), where=divisor > 0)
        into[(factor == 0) & (slope == 0)] = np.inf  # only the last piece: a reading leaves any other one of factor 0
        end_s = np.append(self.start_s[1:], np.inf)[piece]
        times: Floats = np.minimum(self.start_s[piece] + into, end_s)
        return times


@dataclass(frozen=True, slots=True)
class RepeatedClock:
    """A clock that begins anew every `period_s`, when `once` shows `gain_s`."""

    once: RateClock
    period_s: float
    gain_s: float

    def read(self, time_s: float) -> float:
        """The clock's reading at a time."""
        periods, into_s = divmod(time_s, self.period_s)
        return periods * self.gain_s + self.once.read(into_s)

    def times(self, reading_s: Floats) -> Floats:
        """The times of these readings, which must ascend."""
        periods = np.floor(reading_s / self.gain_s)
        into_s = self.once._times(np.clip(reading_s - periods * self.gain_s, 0.0, self.gain_s))
        times: Floats = np.maximum.accumulate(periods * self.period_s + into_s)
        return times

    def until(self, until_s: float) -> RateClock:
        """One clock for the periods that begin before a time, piece by piece. Raises InputError for too many."""
        pieces = len(self.once.start_s) - 1  # the last one, which never ends, begins with the next period
        periods = math.floor(until_s / self.period_s) + 1
        if periods * pieces > MOST_PIECES:
            raise InputError(
                f"profile: {periods:,} periods of {self.period_s:g} s in {until_s:g} s are too many for a process that"
                " switches",
                hint="a longer period, or a shorter workload",
            )
        start_s = np.arange(periods)[:, None] * self.period_s + self.once.start_s[:-1]
        factor = np.append(np.tile(self.once.factor[:-1], periods), self.once.factor[-1])
        slope = np.append(np.tile(self.once.slope[:-1], periods), 0.0)
        reading_s = np.arange(periods)[:, None] * self.gain_s + self.once.reading_s[:-1]
        return RateClock(
            np.append(start_s.ravel(), periods * self.period_s),
            factor,
            slope,
            np.append(reading_s.ravel(), periods * self.gain_s),
        )


Clock = RateClock | RepeatedClock


def from_pieces(start_s: Floats, factor: Floats, end_factor: Floats) -> RateClock:
    """The clock whose piece i goes linearly from factor[i] to end_factor[i]; the last one stays at factor[-1]."""
    length_s = np.diff(start_s)
    slope = np.append((end_factor[:-1] - factor[:-1]) / length_s, 0.0)
    gained_s = 0.5 * (factor[:-1] + end_factor[:-1]) * length_s
    return RateClock(start_s, factor, slope, np.concatenate(([0.0], np.cumsum(gained_s))))


def from_profile(profile: RateProfile) -> Clock:
    """The clock of a profile."""
    once = _from_points(points_of(profile))
    period_s = period_of(profile)
    return once if period_s is None else RepeatedClock(once, period_s, once.read(period_s))


def steady() -> RateClock:
    """The clock that shows the time."""
    return _from_points([(0.0, 1.0)])


def modulated(clock: Clock, switch_s: Floats, factor: Floats) -> RateClock:
    """The clock times `factor[i]` up to `switch_s[i]`, from the switch before it on; it stops at the last switch."""
    base = clock.until(float(switch_s[-1]))
    start_s = np.union1d(np.concatenate(([0.0], switch_s)), base.start_s[base.start_s < switch_s[-1]])
    end_s = np.append(start_s[1:], start_s[-1] + 1.0)
    middle_s = 0.5 * (start_s + end_s)
    times = np.append(factor, 0.0)[np.searchsorted(switch_s, middle_s)]
    piece = np.searchsorted(base.start_s, middle_s, side="right") - 1
    first = base.factor[piece] + base.slope[piece] * (start_s - base.start_s[piece])
    last = base.factor[piece] + base.slope[piece] * (end_s - base.start_s[piece])
    return from_pieces(start_s, times * first, times * last)


def _from_points(points: Points) -> RateClock:
    """The clock of [(t_s, factor), ...], its times not falling; a repeated time is a jump."""
    time_s = np.array([0.0, *(time for time, _ in points)])
    factor = np.array([points[0][1], *(factor for _, factor in points)])
    # a piece of no length is the jump between two others
    starts = np.append(np.diff(time_s), 1.0) > 0
    return from_pieces(time_s[starts], factor[starts], np.append(factor[1:], factor[-1])[starts])


def draw_arrivals(config: Arrival, stream: Stream, until_s: float, most: int) -> Floats:
    """The arrival times in [0, until_s), ascending, float64[n]; only the first `most` of them.

    `stream(purpose)` gives the random numbers. A later `until_s` adds arrivals and changes none of the earlier.
    """
    clock = _clock(config, stream, until_s)
    reading_s = until_s if clock is None else clock.read(until_s)
    readings = config.points(stream("arrivals"), config.rate * reading_s, most) / config.rate
    times = readings if clock is None else clock.times(readings)
    return times[: int(np.searchsorted(times, until_s))]


def expected_arrivals(config: Arrival, until_s: float) -> float:
    """The expected number of arrivals in [0, until_s)."""
    if config.profile is None:
        return config.mean_rate * until_s
    return config.mean_rate * from_profile(config.profile).read(until_s)


def _clock(config: Arrival, stream: Stream, until_s: float) -> Clock | None:
    """The clock on which the process runs; None for real time."""
    profile = None if config.profile is None else from_profile(config.profile)
    switches = config.switches(stream, until_s)
    return profile if switches is None else modulated(profile or steady(), *switches)


# A trace's requests at other times: arrivals drawn from a process, in place of the recorded ones or where there are
# none.

_OWNER = "trace"


def with_arrivals(workload: Workload, config: Arrival, seed: int) -> Workload:
    """The workload with arrivals drawn from `config`, in the order of the requests.

    A request that follows an answer keeps its distance from the one that it follows; the others arrive as drawn. Time 0
    is the start of the process.
    """
    after = workload.after_row
    count = len(workload)
    roots = np.arange(count) if after is None else np.flatnonzero(after < 0)
    drawn = np.empty(count)
    drawn[roots] = first_arrivals(config, seed, len(roots))
    if after is not None:
        recorded = workload.arrival_s
        for row in np.flatnonzero(after >= 0).tolist():  # what it follows lies before it
            drawn[row] = drawn[after[row]] + (recorded[row] - recorded[after[row]])
            for other in workload.also_after[row] if workload.also_after is not None else ():
                drawn[row] = max(drawn[row], drawn[other])
    order = np.argsort(drawn, kind="stable")
    moved = _reordered(workload, order)
    note = f"{len(roots):,} arrivals drawn ({config.process}); the recorded times only keep the order"
    return replace(moved, arrival_s=drawn[order], notes=(*_without_rate(workload.notes), note))


def first_arrivals(config: Arrival, seed: int, count: int) -> Floats:
    """The first `count` arrivals of the process. A larger `count` adds some and changes none.

    Raises InputError for a process that ends, whose arrivals may be fewer.
    """
    if config.ends:
        raise InputError("workload.trace.arrival: its profile ends at 0, the arrivals may be too few for the trace")
    until_s = (count + 4.0 * config.variation * math.sqrt(count) + 8.0) / config.mean_rate
    while True:
        drawn = draw_arrivals(config, partial(stream, seed, _OWNER), until_s, count)
        if len(drawn) >= count:
            return drawn
        until_s *= 1.5


def _reordered(workload: Workload, order: Ints) -> Workload:
    """The rows in another order; a request that was named by its row keeps that name."""
    columns: dict[str, Any] = {
        name: column[order] if isinstance(column, np.ndarray) else [column[row] for row in order.tolist()]
        for name, column in workload.columns().items()
    }
    if workload.request_ids is None and not np.array_equal(order, np.arange(len(order))):
        columns["request_ids"] = list(map(str, order.tolist()))
    if workload.after_row is not None:
        rank = np.empty(len(order), dtype=np.int64)
        rank[order] = np.arange(len(order))
        after = workload.after_row[order]
        columns["after_row"] = np.where(after >= 0, rank[after], -1)
        if workload.also_after is not None:
            columns["also_after"] = [tuple(rank[list(each)].tolist()) for each in columns["also_after"]]
    return replace(workload, **columns)


def _without_rate(notes: tuple[str, ...]) -> tuple[str, ...]:
    """The notes, of which the first says the rate of the recorded arrivals."""
    return (notes[0].partition(" in ")[0], *notes[1:]) if notes else ()
