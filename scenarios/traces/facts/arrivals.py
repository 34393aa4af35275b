"""The load of a trace over time."""

import math
from dataclasses import dataclass, field

import numpy as np

from scenarios.traces.wording import SHORTEST_S
from simulator.workload import Floats

_MOST_STEPS = 100_000  # different steps that are remembered: a trace in ticks has few


@dataclass(frozen=True, slots=True)
class ArrivalFacts:
    """The load over time. None where there are too few requests to tell.

    `rate` is (requests - 1) / duration, `interarrival_cv` the standard deviation of the gaps over their mean, and an
    index of dispersion (`idc_*`) the variance over the mean of the counts in the trace's whole windows of that many
    seconds: 1 for a Poisson process. `peak_minute` is the largest count in any 60 s counted from the first arrival.
    """

    duration_s: float
    rate: float | None
    interarrival_cv: float | None
    idc_1s: float | None
    idc_10s: float | None
    idc_60s: float | None
    max_gap_s: float
    zero_gap_share: float | None
    peak_minute: int


@dataclass(slots=True)
class _Windows:
    """Counts of arrivals in windows of `width_s`, as sums. Windows without arrivals cost nothing."""

    width_s: float
    at: float = 0.0  # the window of the last arrival, counted from 0, and its count so far
    count: int = 0
    total: int = 0  # of the windows before it
    squares: int = 0
    peak: int = 0

    def add(self, since_first_s: Floats) -> None:
        windows, counts = np.unique(since_first_s // self.width_s, return_counts=True)
        if windows[0] == self.at:
            counts[0] += self.count
        else:
            counts, windows = np.append(self.count, counts), np.append(self.at, windows)
        done = counts[:-1]
        self.total += int(done.sum())
        self.squares += int((done**2).sum())
        self.at, self.count = float(windows[-1]), int(counts[-1])
        self.peak = max(self.peak, int(counts.max()))

    def dispersion(self) -> float | None:
        """Variance over mean of the counts in whole windows; None for fewer than two of them."""
        if self.at < 2:
            return None
        mean = self.total / self.at
        return float(self.squares / self.at - mean**2) / mean


@dataclass(slots=True)
class ArrivalSums:
    """Sums over arrivals, which come in ascending order."""

    _first: float | None = None
    _last: float = 0.0
    gaps: int = 0  # between the arrivals so far
    _mean: float = 0.0  # of the gaps
    _deviations: float = 0.0  # sum of their squared deviations from it
    _longest: float = 0.0
    zero_gaps: int = 0
    _steps: dict[float, int] = field(default_factory=dict)  # gaps above 0, as long as they are few
    _windows: tuple[_Windows, ...] = field(default_factory=lambda: (_Windows(1.0), _Windows(10.0), _Windows(60.0)))

    def add(self, arrival_s: Floats) -> None:
        """The next arrivals, at least one."""
        if self._first is None:
            self._first = self._last = float(arrival_s[0])
            gaps = np.diff(arrival_s)
        else:
            gaps = np.diff(arrival_s, prepend=self._last)
        self._last = float(arrival_s[-1])
        for windows in self._windows:
            windows.add(arrival_s - self._first)
        if len(gaps):
            self._add_gaps(gaps)

    def _add_gaps(self, gaps: Floats) -> None:
        # Means and deviations of the two parts put together (Chan, Golub and LeVeque, 1979).
        mean, both = float(gaps.mean()), self.gaps + len(gaps)
        apart = mean - self._mean
        self._deviations += float(((gaps - mean) ** 2).sum()) + apart**2 * self.gaps * len(gaps) / both
        self._mean += apart * len(gaps) / both
        self.gaps = both
        self._longest = max(self._longest, float(gaps.max()))
        self.zero_gaps += int(np.count_nonzero(gaps == 0))
        if len(self._steps) <= _MOST_STEPS:
            steps, counts = np.unique(gaps[gaps > 0], return_counts=True)
            for step, count in zip(steps.tolist(), counts.tolist(), strict=True):
                self._steps[step] = self._steps.get(step, 0) + count

    def steps(self) -> Floats:
        """The gaps above 0, in order; none of them where they are too many to be those of ticks."""
        if len(self._steps) > _MOST_STEPS:
            return np.empty(0)
        return np.repeat(*map(np.array, zip(*sorted(self._steps.items()), strict=True))) if self._steps else np.empty(0)

    def facts(self) -> ArrivalFacts:
        """The facts about the arrivals so far, at least one."""
        assert self._first is not None, "no arrival was added"
        duration = self._last - self._first
        moving = duration >= SHORTEST_S
        one, ten, sixty = self._windows
        return ArrivalFacts(
            duration_s=duration,
            rate=self.gaps / duration if moving else None,
            interarrival_cv=math.sqrt(self._deviations / self.gaps) / self._mean if moving else None,
            idc_1s=one.dispersion(),
            idc_10s=ten.dispersion(),
            idc_60s=sixty.dispersion(),
            max_gap_s=self._longest,
            zero_gap_share=self.zero_gaps / self.gaps if self.gaps else None,
            peak_minute=sixty.peak,
        )
