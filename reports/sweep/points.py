"""A sweep as its report shows it: axes, points on them, and what came of each with every seed. Plain values only."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from reports.verdict.shown_metrics import Column, Summary, column_of
from reports.verdict.significance import Estimate, estimate
from simulator.metrics.table import METRICS

LOADS = frozenset({"rate", "rate_scale", "concurrency"})
"""Last parts of the keys that say how much traffic comes."""


@dataclass(frozen=True, slots=True)
class SweepAxis:
    """Keys that vary together: their name, and the text of each place in order.

    `numbers` has the value of each place where all are numbers, else it is empty.
    """

    keys: tuple[str, ...]
    title: str
    labels: tuple[str, ...]
    numbers: tuple[float, ...] = ()

    @property
    def is_load(self) -> bool:
        """Return whether it says how much traffic comes."""
        return len(self.keys) == 1 and self.keys[0].rpartition(".")[2] in LOADS and bool(self.numbers)


@dataclass(frozen=True, slots=True)
class SweepPoint:
    """A point: its place on each axis, and the summary of each seed.

    `error` is that of the first seed that failed; then there are no summaries, as points are compared seed by seed.
    """

    label: str
    places: tuple[int, ...]
    summaries: tuple[Summary, ...] = ()
    error: str = ""

    def estimate(self, key: str, scale: float = 1.0) -> Estimate:
        """The mean of a metric over seeds, with its interval; NaN where there is none."""
        return estimate(self.summaries, key, scale)

    def bound(self, key: str) -> float:
        """What no scheduler can do better, the mean over seeds in the metric's unit; NaN where it is not known."""
        bounds: list[object] = [summary.get("bound") for summary in self.summaries]
        values = [float(of_seed[key]) for of_seed in bounds if isinstance(of_seed, Mapping) and key in of_seed]
        return sum(values) / len(values) if values and len(values) == len(bounds) else math.nan

    @property
    def is_saturated(self) -> bool:
        """Return whether the point is saturated with any seed."""
        return any(summary.get("saturated") for summary in self.summaries)


@dataclass(frozen=True)  # no slots: what several pictures share is worked out once and kept
class SweepResult:
    """The points of a sweep in the order of its grid. `limits` are the SLO's, in ms by key of summary.json."""

    name: str
    axes: tuple[SweepAxis, ...]
    points: tuple[SweepPoint, ...]
    seeds: int
    study: str = ""
    limits: Mapping[str, float] = field(default_factory=dict)

    @cached_property
    def done(self) -> tuple[SweepPoint, ...]:
        """The points with a result."""
        return tuple(point for point in self.points if point.summaries)

    @cached_property
    def eligible(self) -> list[SweepPoint]:
        """The points that may be best or on a front: those that are not saturated, or all if all are."""
        return [point for point in self.done if not point.is_saturated] or list(self.done)

    def known(self, key: str) -> bool:
        """Return whether any point has a value of this metric."""
        return any(math.isfinite(point.estimate(key).mean) for point in self.done)

    def varies(self, key: str) -> bool:
        """Return whether the metric has more than one value."""
        means = {point.estimate(key).mean for point in self.done}
        return len({mean for mean in means if math.isfinite(mean)}) > 1

    def lines(self, along: int) -> Iterator[tuple[str, list[SweepPoint]]]:
        """The points with a result along an axis: a label and the points in its order, for each place on the others."""
        found: dict[tuple[int, ...], list[SweepPoint]] = {}
        for point in self.done:
            found.setdefault(point.places[:along] + point.places[along + 1 :], []).append(point)
        others = self.axes[:along] + self.axes[along + 1 :]
        for places, points in found.items():
            label = ", ".join(f"{axis.title} {axis.labels[at]}" for axis, at in zip(others, places, strict=True))
            yield label or self.name, sorted(points, key=lambda point: point.places[along])


def column(key: str) -> Column:
    """The column that shows a metric."""
    return column_of(METRICS[key])


def titled(key: str) -> str:
    """A metric's title with its unit."""
    shown = column(key)
    return f"{shown.title} ({shown.unit})" if shown.unit else shown.title


def mean_of(point: SweepPoint, key: str) -> float:
    """A metric's mean over seeds in the unit that it is shown in."""
    return point.estimate(key, column(key).scale).mean


def points_named(points: Sequence[SweepPoint], most: int = 5) -> str:
    """Points by their labels, a few of them in full."""
    names = [f"({point.label})" for point in points[:most]]
    more = len(points) - len(names)
    if not names:
        return f"{more:,} point{'' if more == 1 else 's'}"
    return ", ".join(names) + (f" and {more:,} more" if more else "")
