"""Means over seeds with their intervals, and whether a difference between two policies is real.

All comparisons are paired by seed: the n-th summaries of two policies saw the same requests at the same times.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from reports.verdict.shown_metrics import Column, Summaries, Summary
from simulator.metrics.seed_intervals import metric_difference, metric_interval


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean over seeds and the ends of its 95 % interval; both None for a single seed. NaN where undefined."""

    mean: float
    low: float | None = None
    high: float | None = None

    @property
    def ends(self) -> tuple[float, float]:
        """The ends of the interval; twice the mean where there is none."""
        return (self.mean, self.mean) if self.low is None or self.high is None else (self.low, self.high)

    @property
    def half_width(self) -> float | None:
        """The longer side of the interval."""
        return None if self.low is None or self.high is None else max(self.mean - self.low, self.high - self.mean)


def values(summaries: Sequence[Summary], key: str) -> list[float]:
    """The key of every seed's summary; NaN where it is undefined or missing."""
    found = (summary.get(key) for summary in summaries)
    return [math.nan if value is None else float(value) for value in found]


def estimate(summaries: Sequence[Summary], key: str, scale: float = 1.0) -> Estimate:
    """The mean over those seeds for which it is defined, and its interval within what is possible."""
    found = metric_interval(key, values(summaries, key))
    ends = (found.low * scale, found.high * scale) if found.n > 1 else (None, None)
    return Estimate(found.mean * scale, *ends)


def is_real(one: Sequence[Summary], other: Sequence[Summary], key: str) -> bool:
    """Return whether the paired 95 % interval of the difference excludes 0.

    One seed shows no difference, and neither do runs of different numbers of seeds: they cannot be paired.
    """
    if len(one) != len(other):
        return False
    return metric_difference(key, values(one, key), values(other, key)).excludes_zero


def ranked(summaries: Summaries, key: str, better: int) -> list[str]:
    """Labels from best to worst mean, those without a value left out; equals in the order given."""
    means = {label: estimate(runs, key).mean for label, runs in summaries.items()}
    return sorted((label for label, mean in means.items() if math.isfinite(mean)), key=lambda k: -better * means[k])


def best(summaries: Summaries, column: Column) -> tuple[str, ...]:
    """The labels to mark in a column: the best one, and one equal to it in every seed, if they beat all others.

    With several seeds the difference to each of the others must be real; with one it must only be there. None are
    marked where there is no other to beat, or where more than two are equal: then it is rather the others that stand
    out.
    """
    order = ranked(summaries, column.key, column.better) if column.better else []
    if not order:
        return ()
    first = summaries[order[0]]
    equals = [label for label in order if values(summaries[label], column.key) == values(first, column.key)]
    others = [summaries[label] for label in order if label not in equals]
    beats = len(first) == 1 or all(is_real(first, other, column.key) for other in others)
    return tuple(equals) if others and len(equals) <= 2 and beats else ()


def seeds(summaries: Summaries) -> int:
    """Seeds of each run: the most that any has."""
    return max((len(runs) for runs in summaries.values()), default=0)


def joined(names: Iterable[str]) -> str:
    """a, b and c."""
    listed = list(names)
    return listed[0] if len(listed) == 1 else f"{', '.join(listed[:-1])} and {listed[-1]}"
