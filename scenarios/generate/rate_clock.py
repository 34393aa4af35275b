"""A clock that a rate profile speeds up and slows down: arrival processes with a rate that changes.

A stationary process of rate 1 on this clock, seen in real time, is the process with the rate of the profile: the
expected number of arrivals up to t is the integral of the factor (time rescaling; Cinlar 1975, ch. 4.7). Scaling
each gap by the rate at its start instead would miss every change that falls within a gap.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from scenarios.schema.rate_profile import Points, RateProfile, period_of, points_of
from simulator.errors import InputError
from simulator.workload import Floats

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
