"""The points of a sweep: axes, what came of each with every seed, the knees of lines, Pareto fronts, the best points.

Plain values only: nothing here draws.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from reports.verdict.sentences import EVEN
from reports.verdict.shown_metrics import KEPT, Column, Estimate, Summary, column_of, estimate, is_real
from simulator.metrics.outcomes import ATTAINMENT, MET
from simulator.metrics.summary import METRICS

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


# The knee of a line of points over the load: where more load begins to cost more latency than it is worth.
#
# The rule is Kleinrock's: the knee is where power, throughput over mean end-to-end latency, is greatest (L.
# Kleinrock, Power and deterministic rules of thumb for probabilistic problems in computer communications, ICC 1979;
# R. Jain, The Art of Computer Systems Performance Analysis (1991), 3.3, calls this throughput the knee capacity).
# For M/M/1 it lies at half of the capacity. It takes no parameter and does not depend on how far beyond saturation
# the line goes on.

THROUGHPUT, LATENCY = "request_throughput", "mean_e2el_ms"
RULE = "The knee is where throughput / mean end-to-end latency is greatest (Kleinrock's power)."


@dataclass(frozen=True, slots=True)
class Knee:
    """The point of a line at its knee, and the first and the last place of the knee with a single seed.

    `inside` is False where the knee is the line's first or last point: it may lie further out.
    """

    point: SweepPoint
    first: SweepPoint
    last: SweepPoint
    inside: bool


def knee(points: Sequence[SweepPoint]) -> Knee | None:
    """The knee of points in the order of their load, from their means; None for fewer than three points."""
    able = [point for point in points if math.isfinite(_power([*point.summaries]))]
    if len(able) < 3:
        return None
    place = _peak([_power([*point.summaries]) for point in able])
    count = min(len(point.summaries) for point in able)
    by_seed = [_peak([_power([point.summaries[seed]]) for point in able]) for seed in range(count)]
    return Knee(able[place], able[min(by_seed)], able[max(by_seed)], 0 < place < len(able) - 1)


def _peak(powers: Sequence[float]) -> int:
    """The place of the greatest power; of equals the first, and where one has none the others decide."""
    return max(range(len(powers)), key=lambda place: powers[place] if math.isfinite(powers[place]) else -math.inf)


def _power(summaries: Sequence[Summary]) -> float:
    """Throughput over latency, of the means over seeds; NaN where either is unknown."""
    means = []
    for key in (THROUGHPUT, LATENCY):
        known = [float(value) for summary in summaries if (value := summary.get(key)) is not None]
        means.append(sum(known) / len(known) if known else math.nan)
    return means[0] / means[1] if means[1] else math.nan


# Pareto fronts: the points that no other beats in both of two quantities.

Quantity = Callable[[SweepPoint], float]


@dataclass(frozen=True, slots=True)
class Trade:
    """Two quantities that are bought with each other; `x_better` and `y_better` are +1 for more, -1 for less."""

    name: str
    title: str
    x_title: str
    y_title: str
    x: Quantity
    y: Quantity
    x_better: int = 1
    y_better: int = 1
    x_nines: bool = False  # x is a share in per cent: what counts is how near it comes to 100

    def front(self, points: Sequence[SweepPoint]) -> list[SweepPoint]:
        """The points that none beats in one quantity without losing in the other, by rising x; of equals all."""
        known = [point for point in points if math.isfinite(self.x(point)) and math.isfinite(self.y(point))]
        best = -math.inf
        kept: list[SweepPoint] = []
        order = sorted(known, key=lambda point: (-self.x_better * self.x(point), -self.y_better * self.y(point)))
        for point in order:
            value = self.y_better * self.y(point)
            equal = bool(kept) and (self.x(kept[-1]), self.y(kept[-1])) == (self.x(point), self.y(point))
            if value > best or equal:
                kept.append(point)
                best = value
        return sorted(kept, key=self.x)


def _per_user(point: SweepPoint) -> float:
    tpot_ms = point.estimate("p50_tpot_ms").mean
    return 1e3 / tpot_ms if tpot_ms > 0 else math.nan


def _per_gpu(point: SweepPoint) -> float:
    """Output tokens over the GPUs' time; equal to output_throughput over GPUs where their number stays."""
    hours, tokens = point.estimate("gpu_hours").mean, point.estimate("total_output_tokens").mean
    return tokens / (hours * 3600) if hours > 0 else math.nan


TRADES = (
    Trade(
        "speed",
        "Throughput against speed",
        "output tokens/s of a user (1 / TPOT p50)",
        "output tokens/s of a GPU",
        _per_user,
        _per_gpu,
    ),
    Trade(
        "cost",
        "Cost against the SLO",
        "requests within the SLO (%)",
        "cost (USD per million output tokens)",
        lambda point: 100 * point.estimate("slo_attainment").mean,
        lambda point: point.estimate("usd_per_million_output_tokens").mean,
        y_better=-1,
        x_nines=True,
    ),
)


def trades(result: SweepResult) -> list[Trade]:
    """The trades that this sweep has to offer: both quantities vary."""

    def varies(of: Quantity) -> bool:
        return len({value for point in result.done if math.isfinite(value := of(point))}) > 1

    return [trade for trade in TRADES if varies(trade.x) and varies(trade.y)]


# The best points of a sweep by each measure, and those that cannot be told from them.

COST = "usd_per_million_output_tokens"
MEASURES = ("request_goodput", ATTAINMENT, "p99_ttft_ms", "p99_tpot_ms", "p99_e2el_ms", "output_throughput", COST)


@dataclass(frozen=True, slots=True)
class Best:
    """The best point by a metric, those that are as good as far as can be told, and from how many it was chosen."""

    title: str
    key: str
    point: SweepPoint
    equal: tuple[SweepPoint, ...]
    among: int


def best_points(result: SweepResult) -> list[Best]:
    """The best by each measure that differs between points; saturated points win nothing unless all are saturated.

    With several seeds a point is equal to the best if the paired 95 % interval of their difference holds 0; with one
    seed, if it is within 2 %, which is a rule of thumb and no interval.
    """
    able = result.eligible
    found = [] if (kept := _cheapest_within_slo(result, able)) is None else [kept]
    for key in MEASURES:
        if result.varies(key) and (one := _best(column(key).title, key, able)) is not None:
            found.append(one)
    return found


def _cheapest_within_slo(result: SweepResult, able: Sequence[SweepPoint]) -> Best | None:
    """The cheapest point that keeps the SLO with every seed; None without an SLO, a price, or such a point."""
    if not result.known(COST) or not has_slo(able):
        return None
    return _best("cheapest within the SLO", COST, [point for point in able if keeps_slo(point)])


def has_slo(points: Sequence[SweepPoint]) -> bool:
    """Return whether the points have an SLO to keep: targets, or limits of requests."""
    summaries = [each.summaries[0] for each in points if each.summaries]
    return any(MET in summary or summary.get(ATTAINMENT) is not None for summary in summaries)


def keeps_slo(point: SweepPoint) -> bool:
    """Return whether the point meets its targets with every seed, or 99 % of its requests their limits."""
    for summary in point.summaries:
        met, share = summary.get(MET), summary.get(ATTAINMENT)
        if not (met if met is not None else share is not None and share >= KEPT):
            return False
    return True


def _best(title: str, key: str, points: Sequence[SweepPoint]) -> Best | None:
    better = column(key).better
    known = [point for point in points if math.isfinite(point.estimate(key).mean)]
    if not known:
        return None
    first = max(known, key=lambda point: better * point.estimate(key).mean)
    equal = tuple(point for point in known if point is not first and not _differs(first, point, key))
    return Best(title, key, first, equal, len(known))


def _differs(one: SweepPoint, other: SweepPoint, key: str) -> bool:
    if len(one.summaries) > 1:
        same = [summary.get(key) for summary in one.summaries] == [summary.get(key) for summary in other.summaries]
        return not same and is_real(one.summaries, other.summaries, key)
    a, b = one.estimate(key).mean, other.estimate(key).mean
    return abs(a - b) > EVEN * max(abs(a), abs(b))
