"""A clock that a rate profile speeds up and slows down: arrival processes with a rate that changes.

A stationary process of rate 1 on this clock, seen in real time, is the process with the rate of the profile: the
expected number of arrivals up to t is the integral of the factor (time rescaling; Cinlar 1975, ch. 4.7). Scaling
each gap by the rate at its start instead would miss every change that falls within a gap.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from simulator.workload import Floats


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
        piece = np.searchsorted(self.reading_s, reading_s, side="right") - 1
        left = reading_s - self.reading_s[piece]
        factor, slope = self.factor[piece], self.slope[piece]
        # left = factor x + slope x^2 / 2, solved so that nothing cancels and slope 0 needs no case of its own
        divisor = factor + np.sqrt(np.maximum(factor * factor + 2.0 * slope * left, 0.0))
        into = np.divide(2.0 * left, divisor, out=np.zeros_like(left), where=divisor > 0)
        into[(factor == 0) & (slope == 0)] = np.inf  # only the last piece: a reading leaves any other one of factor 0
        end_s = np.append(self.start_s[1:], np.inf)[piece]
        times: Floats = np.minimum(self.start_s[piece] + into, end_s)
        return np.maximum.accumulate(times)  # readings a last bit apart may come out in the wrong order


def from_pieces(start_s: Floats, factor: Floats, end_factor: Floats) -> RateClock:
    """The clock whose piece i goes linearly from factor[i] to end_factor[i]; the last one stays at factor[-1]."""
    length_s = np.diff(start_s)
    slope = np.append((end_factor[:-1] - factor[:-1]) / length_s, 0.0)
    gained_s = 0.5 * (factor[:-1] + end_factor[:-1]) * length_s
    return RateClock(start_s, factor, slope, np.concatenate(([0.0], np.cumsum(gained_s))))


def from_profile(points: Sequence[tuple[float, float]]) -> RateClock:
    """The clock of a profile [(t_s, factor), ...], its times not falling; a repeated time is a jump."""
    time_s = np.array([0.0, *(time for time, _ in points)])
    factor = np.array([points[0][1], *(factor for _, factor in points)])
    # a piece of no length is the jump between two others
    starts = np.append(np.diff(time_s), 1.0) > 0
    return from_pieces(time_s[starts], factor[starts], np.append(factor[1:], factor[-1])[starts])


def switched(clock: RateClock, switch_s: Floats, *, starts_on: bool) -> RateClock:
    """The clock stopped in every second interval between the switches, and after the last."""
    start_s = np.union1d(np.concatenate(([0.0], switch_s)), clock.start_s[clock.start_s < switch_s[-1]])
    end_s = np.append(start_s[1:], start_s[-1] + 1.0)
    middle_s = 0.5 * (start_s + end_s)
    switches_before = np.searchsorted(switch_s, middle_s)
    on = ((switches_before % 2 == 0) == starts_on) & (switches_before < len(switch_s))
    piece = np.searchsorted(clock.start_s, middle_s, side="right") - 1
    factor = clock.factor[piece] + clock.slope[piece] * (start_s - clock.start_s[piece])
    end_factor = clock.factor[piece] + clock.slope[piece] * (end_s - clock.start_s[piece])
    return from_pieces(start_s, np.where(on, factor, 0.0), np.where(on, end_factor, 0.0))
